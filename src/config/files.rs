//! From paths to text: files as they are named, folders in name order.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{ConfigError, Place, Problem};

/// The text of one file, and what to call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// As the operator named it.
    pub name: Arc<str>,
    /// All of it.
    pub text: String,
}

/// A hundred thousand rules are some 10 MB.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Reads every file of `paths`, or says which of them can't be read. In a folder, those are the
/// files that end in `.yaml` or `.yml` and don't begin with a dot: a Kubernetes `ConfigMap` keeps
/// its files twice, once under `..data`.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Source>, Vec<ConfigError>> {
    let mut sources = Vec::new();
    let mut errors = Vec::new();
    for path in paths {
        match files_of(path) {
            Ok(files) => {
                for file in files {
                    match read_file(&file) {
                        Ok(source) => sources.push(source),
                        Err(problem) => errors.push(error(&file, problem)),
                    }
                }
            }
            Err(problem) => errors.push(error(path, problem)),
        }
    }
    if errors.is_empty() {
        Ok(sources)
    } else {
        Err(errors)
    }
}

/// What tells versions of a file apart without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    path: PathBuf,
    /// Of what a symlink leads to.
    device: u64,
    inode: u64,
    changed_at: (i64, i64),
    bytes: u64,
}

/// The stamps of every file that [`read`] would read; none for those that can't be found.
pub fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let files = paths
        .iter()
        .filter_map(|path| files_of(path).ok())
        .flatten();
    let stamp = |path: PathBuf| {
        let metadata = fs::metadata(&path).ok()?;
        Some(Stamp {
            path,
            device: metadata.dev(),
            inode: metadata.ino(),
            changed_at: (metadata.mtime(), metadata.mtime_nsec()),
            bytes: metadata.len(),
        })
    };
    files.filter_map(stamp).collect()
}

/// Sorted, because where a domain is merged the order of its wildcards matters.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, Problem> {
    if !fs::metadata(path).map_err(unreadable)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        if is_rules_file(&file) {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(Problem::EmptyFolder);
    }
    files.sort();
    Ok(files)
}

fn is_rules_file(file: &Path) -> bool {
    let is_hidden = file
        .file_name()
        .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let is_yaml = file
        .extension()
        .is_some_and(|extension| extension == "yaml" || extension == "yml");
    is_yaml && !is_hidden && !file.is_dir()
}

fn read_file(file: &Path) -> Result<Source, Problem> {
    let length = fs::metadata(file).map_err(unreadable)?.len();
    if length > FILE_BYTES_MAX {
        let problem = Problem::LongFile {
            found: length,
            allowed: FILE_BYTES_MAX,
        };
        return Err(problem);
    }
    let text = fs::read_to_string(file).map_err(unreadable)?;
    Ok(Source {
        name: file.to_string_lossy().into(),
        text,
    })
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is an argument of map_err"
)]
fn unreadable(error: io::Error) -> Problem {
    Problem::Unreadable(error.to_string())
}

fn error(path: &Path, problem: Problem) -> ConfigError {
    ConfigError {
        place: Place {
            file: path.to_string_lossy().into(),
            position: None,
            path: String::new(),
        },
        problem,
    }
}
