//! Puts the settings of another program in front of our own.

use std::ffi::{OsStr, OsString};

use clap::ValueEnum;
use comporta::settings::Profile;
use comporta::settings::envoyproxy::{self, Translation};

/// The command line, and what the log has to say about it.
pub(crate) struct CommandLine {
    pub(crate) arguments: Vec<OsString>,
    pub(crate) profile: Profile,
    /// Variables that are set and have no meaning here.
    pub(crate) without_meaning: Vec<&'static str>,
}

/// Commands for which only rules matter, which are where they are said to be.
const OTHER_COMMANDS: [&str; 4] = ["check", "counters", "explain", "help"];

/// What was written, and before it what envoyproxy/ratelimit's variables say, if they count; or what is
/// wrong with them.
pub(crate) fn command_line(
    mut written: Vec<OsString>,
    variables: envoyproxy::Variables<'_>,
) -> Result<CommandLine, Vec<String>> {
    let program = written.first().cloned().unwrap_or_default();
    let is_first = |name: &str| written.get(1).is_some_and(|first| first == name);
    let is_served = !OTHER_COMMANDS.into_iter().any(is_first);
    if !is_served || profile(&written, &program, variables) == Profile::Comporta {
        return Ok(CommandLine {
            arguments: written,
            profile: Profile::Comporta,
            without_meaning: Vec::new(),
        });
    }
    let Translation {
        flags,
        without_meaning,
        errors,
    } = envoyproxy::translate(variables);
    if !errors.is_empty() {
        return Err(errors);
    }
    let place = 1 + usize::from(is_first("serve"));
    let ours = |flag: &String| !is_said_otherwise(flag, &written, variables);
    let flags: Vec<_> = flags.into_iter().filter(ours).map(OsString::from).collect();
    written.splice(place.min(written.len())..place.min(written.len()), flags);
    Ok(CommandLine {
        arguments: written,
        profile: Profile::Envoyproxy,
        without_meaning,
    })
}

fn profile(written: &[OsString], program: &OsStr, variables: envoyproxy::Variables<'_>) -> Profile {
    let flag = written.iter().enumerate().find_map(|(index, argument)| {
        let argument = argument.to_str()?;
        match argument.strip_prefix("--profile=") {
            Some(name) => Some(name.to_owned()),
            None if argument == "--profile" => Some(written.get(index + 1)?.to_str()?.to_owned()),
            None => None,
        }
    });
    // A name that there isn't is complained about where all flags are read.
    let named = flag.or_else(|| variables("COMPORTA_PROFILE"));
    match named.map(|name| Profile::from_str(&name, false)) {
        Some(profile) => profile.unwrap_or(Profile::Comporta),
        None if envoyproxy::is_meant(program, variables) => Profile::Envoyproxy,
        None => Profile::Comporta,
    }
}

/// Whether our own flag or variable says it, too.
fn is_said_otherwise(
    flag: &str,
    written: &[OsString],
    variables: envoyproxy::Variables<'_>,
) -> bool {
    let name = flag.split('=').next().unwrap_or(flag);
    let with_value = format!("{name}=");
    let is_written = written.iter().filter_map(|argument| argument.to_str());
    let mut is_written = is_written.filter(|text| *text == name || text.starts_with(&with_value));
    let variable = name
        .trim_start_matches('-')
        .replace('-', "_")
        .to_uppercase();
    is_written.next().is_some() || variables(&format!("COMPORTA_{variable}")).is_some()
}
