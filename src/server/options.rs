//! What the settings mean to each of the parts.

use crate::config::parse::ParseOptions;
use crate::config::{Enforcement, FailureMode, HeaderProfile};
use crate::request::Bounds;
use crate::response::HeaderNames;
use crate::service::Options;
use crate::settings::{
    DefaultEnforcement, DefaultFailureMode, DefaultHeaders, ReadingSettings, Settings,
};

pub(super) fn parse_options(settings: &ReadingSettings) -> ParseOptions {
    ParseOptions {
        merge_domains: settings.merge_domains,
        headers: match settings.headers {
            DefaultHeaders::RateLimit => HeaderProfile::RateLimit,
            DefaultHeaders::XRateLimit => HeaderProfile::XRateLimit,
            DefaultHeaders::Structured => HeaderProfile::Structured,
            DefaultHeaders::None => HeaderProfile::None,
        },
        charge_denied: settings.charge_denied,
        enforcement: match settings.enforcement {
            DefaultEnforcement::Written => None,
            DefaultEnforcement::Shadow => Some(Enforcement::Shadow),
            DefaultEnforcement::Quota => Some(Enforcement::Quota),
        },
    }
}

pub(super) fn options(settings: &Settings) -> Options {
    Options {
        failure_mode: failure_mode(settings.failure_mode),
        store_timeout: settings.store_timeout.into(),
        holds_max: settings.holds_max.min(tokio::sync::Semaphore::MAX_PERMITS),
        requests_max: settings.requests_max,
        header_names: header_names(settings.header_names.as_ref()),
        describes_request: settings.describe_requests,
        near_limit_ratio: settings.near_limit_ratio,
    }
}

pub(super) fn bounds(settings: &Settings) -> Bounds {
    Bounds {
        descriptors_max: settings.descriptors_max,
        entries_max: settings.entries_max,
    }
}

pub(super) fn failure_mode(setting: DefaultFailureMode) -> FailureMode {
    match setting {
        DefaultFailureMode::Open => FailureMode::Open,
        DefaultFailureMode::Closed => FailureMode::Closed,
        DefaultFailureMode::Local => FailureMode::Local,
        DefaultFailureMode::Error => FailureMode::Error,
    }
}

/// They live as long as the process, which is told them once.
fn header_names(names: Option<&[String; 3]>) -> HeaderNames {
    names.map_or_else(HeaderNames::default, |names| {
        HeaderNames(names.clone().map(|name| &*name.leak()))
    })
}
