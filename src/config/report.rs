//! For people: the rules in force as a table, and the errors of those that are not.

use super::{Config, ConfigError, Domain, Enforcement, Limits, Rule};

/// One line per limit, with a heading; columns are aligned.
#[must_use]
pub fn table(config: &Config) -> String {
    let heading = [
        "DOMAIN",
        "RULE",
        "ALGORITHM",
        "LIMIT",
        "FAILURE MODE",
        "WRITTEN IN",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    for domain in config.domains() {
        let rules = domain.rules();
        if rules.is_empty() {
            rows.push(row(domain, "(no rules)", "-", "-".to_owned(), None));
        }
        for rule in rules {
            rows.extend(rule_rows(domain, rule));
        }
    }
    align(&rows)
}

/// All the errors, a line each, and how many.
#[must_use]
pub fn errors(errors: &[ConfigError]) -> String {
    let mut lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
    lines.push(match errors.len() {
        1 => "1 error; nothing was loaded".to_owned(),
        count => format!("{count} errors; nothing was loaded"),
    });
    lines.join("\n")
}

type Row = [String; 6];

fn rule_rows(domain: &Domain, rule: &Rule) -> Vec<Row> {
    match &rule.limits {
        Limits::Unlimited => {
            vec![row(
                domain,
                &rule.path,
                "-",
                "unlimited".to_owned(),
                Some(rule),
            )]
        }
        Limits::Counted(limits) => limits
            .iter()
            .map(|limit| {
                let algorithm = limit.limit.policy().algorithm().name();
                let mode = match rule.enforcement {
                    Enforcement::Hard => "",
                    Enforcement::Shadow => " (shadow mode)",
                    Enforcement::Quota => " (quota mode)",
                };
                let text = format!("{}{mode}", limit.limit);
                row(domain, &rule.path, algorithm, text, Some(rule))
            })
            .collect(),
    }
}

fn row(domain: &Domain, path: &str, algorithm: &str, limit: String, rule: Option<&Rule>) -> Row {
    let mode = rule
        .and_then(|rule| rule.failure_mode)
        .or(domain.failure_mode);
    [
        domain.name.escape_debug().to_string(),
        path.to_owned(),
        algorithm.to_owned(),
        limit,
        mode.map_or("(setting)", |mode| mode.name()).to_owned(),
        rule.map_or("-", |rule| rule.origin.as_str()).to_owned(),
    ]
}

fn align(rows: &[Row]) -> String {
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..6).map(width).collect();
    let mut table = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}
