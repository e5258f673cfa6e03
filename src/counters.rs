//! `counters get` and `counters reset`: a client of a running server's debug port.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use comporta::settings::DEBUG_ADDR_DEFAULT;

use crate::commands::entry;
use crate::{complain, print};

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Says what counts at present for a descriptor
    Get(Counted),
    /// Makes a descriptor's counters start anew
    Reset(Counted),
}

/// Whose counters.
#[derive(Args, Debug)]
pub(crate) struct Counted {
    /// The debug port of the server
    #[arg(long, value_name = "ADDR", env = "COMPORTA_DEBUG_ADDR", default_value = DEBUG_ADDR_DEFAULT)]
    debug_addr: SocketAddr,

    /// The domain that requests name
    #[arg(long)]
    domain: String,

    /// The entries of the descriptor, in order
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = entry)]
    entries: Vec<(String, String)>,
}

pub(crate) fn run(action: &Action) -> ExitCode {
    let (counted, is_reset) = match action {
        Action::Get(counted) => (counted, false),
        Action::Reset(counted) => (counted, true),
    };
    let url = format!("http://{}/counters", counted.debug_addr);
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into();
    let request = if is_reset {
        agent.delete(url)
    } else {
        agent.get(url)
    };
    let entries = counted
        .entries
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    let parameters = [("domain", counted.domain.as_str())]
        .into_iter()
        .chain(entries);
    let answer = request
        .query_pairs(parameters)
        .call()
        .and_then(|mut response| {
            let text = response.body_mut().read_to_string()?;
            Ok((response.status().is_success(), text))
        });
    match answer {
        Ok((true, text)) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Ok((false, text)) => {
            complain(text.trim_end());
            ExitCode::FAILURE
        }
        Err(error) => {
            complain(&format!("{} can't be asked: {error}", counted.debug_addr));
            ExitCode::FAILURE
        }
    }
}
