//! From rules as written to rules in force, or all that is wrong with them.

use std::collections::HashMap;
use std::sync::OnceLock;

use indexmap::IndexMap;

use super::compile;
use super::error::{ConfigError, Oddity, Problem};
use super::files::Source;
use super::findings::{At, Document, Findings};
use super::raw::{self, RawConfig};
use super::resource::Resource;
use super::yaml::shorten;
use super::{ChargeDenied, Config, Domain, Enforcement, HeaderProfile, Overrides};
use crate::algorithm::Algorithm;

/// How files are read together, and what they mean where they say nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParseOptions {
    /// Whether several files may add to one domain.
    pub merge_domains: bool,
    /// The headers of domains that name none.
    pub headers: HeaderProfile,
    /// Whether fixed windows count denied hits, too.
    pub charge_denied: bool,
    /// How every rule takes part in decisions, whatever it says.
    pub enforcement: Option<Enforcement>,
}

/// The longest sliding window log that a domain allows unless it says otherwise: at 16 bytes an
/// instant, 160 KB for each value.
pub const LOG_ENTRIES_MAX_DEFAULT: u32 = 10_000;

/// Reads rules. Either all of them are right, or the result is everything that is wrong.
pub fn parse(sources: &[Source], options: ParseOptions) -> Result<Config, Vec<ConfigError>> {
    let mut findings = Findings::default();
    let mut files = Vec::new();
    for source in sources {
        let file = Document::File(source.name.clone());
        files.extend(raw::read(&file, &source.text, &mut findings));
    }
    build(files, options, findings)
}

/// The same of rules that came over xDS. They are merged in the order of the resources, too.
pub fn parse_resources(
    resources: &[Resource],
    options: ParseOptions,
) -> Result<Config, Vec<ConfigError>> {
    let mut findings = Findings::default();
    let mut raw = Vec::new();
    for resource in resources {
        let document = Document::Resource(resource.name.clone());
        raw.extend(raw::read_value(&document, &resource.rules, &mut findings));
    }
    build(raw, options, findings)
}

fn build(
    raw: Vec<RawConfig>,
    options: ParseOptions,
    mut findings: Findings,
) -> Result<Config, Vec<ConfigError>> {
    let mut files: IndexMap<String, Vec<RawConfig>> = IndexMap::new();
    for raw in raw {
        let of_domain = files.entry(raw.domain.value.clone()).or_default();
        if let Some(first) = of_domain.first()
            && !options.merge_domains
        {
            let problem = Problem::DuplicateDomain {
                domain: shorten(&raw.domain.value),
                first: first.file.to_string(),
            };
            findings.error(&raw.file, raw.domain.at, problem);
        }
        of_domain.push(raw);
    }

    let mut domains = HashMap::new();
    for (name, files) in files {
        let step = format!("domain {}", shorten(&name));
        let domain = findings.within(step, |findings| domain(&name, files, options, findings));
        domains.insert(name.into_bytes().into(), domain);
    }
    let warnings = findings.finish()?;
    Ok(Config {
        domains,
        warnings,
        is_awaited: false,
    })
}

fn domain(
    name: &str,
    files: Vec<RawConfig>,
    options: ParseOptions,
    findings: &mut Findings,
) -> Domain {
    let failure_mode = agreed("failure_mode", &files, findings, |file| {
        file.failure_mode.as_ref()
    });
    let headers = agreed("headers", &files, findings, |file| file.headers.as_ref());
    let algorithm = agreed("algorithm", &files, findings, |file| {
        file.algorithm.as_ref()
    });
    let charge_denied = agreed("charge_denied", &files, findings, |file| {
        file.charge_denied.as_ref()
    });
    let log_entries_max = agreed("max_log_entries", &files, findings, |file| {
        file.max_log_entries.as_ref()
    });
    let hash_tag = agreed("hash_tag", &files, findings, |file| file.hash_tag.as_ref());
    // A resource has no place to write one.
    if let (None, Some(first)) = (failure_mode, files.first())
        && matches!(first.file, Document::File(_))
    {
        findings.warn(&first.file, first.domain.at, Oddity::NoFailureMode);
    }

    let overrides = Overrides {
        algorithm: algorithm.unwrap_or(Algorithm::FixedWindow),
        charge_denied: match charge_denied {
            Some(true) => ChargeDenied::Always,
            None if options.charge_denied => ChargeDenied::FixedWindows,
            Some(false) | None => ChargeDenied::Never,
        },
        enforcement: options.enforcement,
        log_entries_max: log_entries_max.unwrap_or(LOG_ENTRIES_MAX_DEFAULT),
    };
    let descriptors = files.into_iter().flat_map(|file| file.descriptors);
    let root = compile::tree(descriptors.collect(), overrides, findings);
    Domain {
        name: name.to_owned(),
        failure_mode,
        headers: headers.unwrap_or(options.headers),
        hash_tag: hash_tag.map(|key| key.into_bytes().into()),
        overrides,
        override_meter: OnceLock::new(),
        root,
    }
}

/// What the files of a domain say about it; those that say something must say the same.
fn agreed<T: Clone + PartialEq>(
    key: &'static str,
    files: &[RawConfig],
    findings: &mut Findings,
    setting: impl Fn(&RawConfig) -> Option<&At<T>>,
) -> Option<T> {
    let mut first: Option<(&T, &RawConfig)> = None;
    for file in files {
        match (setting(file), first) {
            (Some(said), None) => first = Some((&said.value, file)),
            (Some(said), Some((value, first))) if said.value != *value => {
                let first = first.file.to_string();
                findings.error(&file.file, said.at, Problem::Disagreement { key, first });
            }
            _ => {}
        }
    }
    first.map(|(value, _)| value.clone())
}
