//! What reading rules brings to light: every error and every oddity, with its place.

use std::fmt;
use std::sync::Arc;

use super::error::{ConfigError, Oddity, Place, Position, Problem, Warning};

/// Collects; knows the way from the root to where the reader is.
#[derive(Debug, Default)]
pub(super) struct Findings {
    errors: Vec<ConfigError>,
    warnings: Vec<Warning>,
    path: Vec<String>,
}

/// What rules were read from, by name.
#[derive(Clone, Debug)]
pub(super) enum Document {
    /// A file, in which everything has a line.
    File(Arc<str>),
    /// A value that another program made; nobody has ever seen a line of it.
    Resource(Arc<str>),
}

impl Document {
    /// For a person: where something is, to the line.
    pub(super) fn line(&self, at: Position) -> String {
        match self {
            Self::File(name) => format!("{name}:{}", at.line),
            Self::Resource(name) => name.to_string(),
        }
    }

    fn place(&self, at: Position, path: String) -> Place {
        let (name, position) = match self {
            Self::File(name) => (name, Some(at)),
            Self::Resource(name) => (name, None),
        };
        Place {
            file: name.clone(),
            position,
            path,
        }
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) | Self::Resource(name) => f.write_str(name),
        }
    }
}

/// A value, and where it is written.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) at: Position,
    pub(super) value: T,
}

impl Findings {
    pub(super) fn error(&mut self, file: &Document, at: Position, problem: impl Into<Problem>) {
        let error = ConfigError {
            place: file.place(at, self.path.join(", ")),
            problem: problem.into(),
        };
        self.errors.push(error);
    }

    pub(super) fn warn(&mut self, file: &Document, at: Position, oddity: Oddity) {
        let warning = Warning {
            place: file.place(at, self.path.join(", ")),
            oddity,
        };
        self.warnings.push(warning);
    }

    /// One step down.
    pub(super) fn enter(&mut self, step: String) {
        self.path.push(step);
    }

    /// One step up again.
    pub(super) fn leave(&mut self) {
        self.path.pop();
    }

    /// One step down, for as long as `work` takes.
    pub(super) fn within<T>(&mut self, step: String, work: impl FnOnce(&mut Self) -> T) -> T {
        self.enter(step);
        let result = work(self);
        self.leave();
        result
    }

    /// The way to here, without the domain.
    pub(super) fn rule_path(&self) -> String {
        self.path.get(1..).unwrap_or_default().join(", ")
    }

    /// The warnings, or all the errors if there is one; in the order of the files.
    pub(super) fn finish(mut self) -> Result<Vec<Warning>, Vec<ConfigError>> {
        let key = |place: &Place| (place.file.clone(), place.position);
        if self.errors.is_empty() {
            self.warnings.sort_by_key(|warning| key(&warning.place));
            Ok(self.warnings)
        } else {
            self.errors.sort_by_key(|error| key(&error.place));
            Err(self.errors)
        }
    }
}
