//! What can be wrong with rules, and what is legal but odd, in sentences that say what to do.

use std::fmt;
use std::sync::Arc;

use super::FailureMode;
use crate::algorithm::{LEASE_MIN, LimitError, Share};

/// A place in a file, both counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl Position {
    pub(super) fn new(line: usize, column: usize) -> Self {
        Self { line, column }
    }
}

/// Where in the rules something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as the operator named it.
    pub file: Arc<str>,
    /// Where in the file; none if it could not even be read.
    pub position: Option<Position>,
    /// The keys that lead there, for example `domain api, path=/login`; may be empty.
    pub path: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(Position { line, column }) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        Ok(())
    }
}

/// Why rules were refused. What was in force before stays in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ConfigError {
    /// Where.
    pub place: Place,
    /// What is wrong, and what to write instead.
    pub problem: Problem,
}

/// What is wrong; each says what was found, then what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A file or folder that can't be read.
    #[error("can't be read: {0}")]
    Unreadable(String),
    /// A folder without rules.
    #[error("holds no .yaml or .yml file; an empty set of rules is never loaded")]
    EmptyFolder,
    /// A file beyond the bound.
    #[error("is {found} bytes long; {allowed} are allowed")]
    LongFile {
        /// How long it is.
        found: u64,
        /// How long it may be.
        allowed: u64,
    },

    /// Not YAML.
    #[error("this is not YAML: {0}")]
    Syntax(String),
    /// More than one document.
    #[error("a second document starts here; write one domain per file")]
    SecondDocument,
    /// Nested too deep.
    #[error("this is nested more than {0} levels deep")]
    TooDeep(usize),
    /// Too many parts, counting what aliases stand for.
    #[error("the file comes to more than {0} values; split it")]
    TooLarge(usize),
    /// A list or a map in a key's place.
    #[error("a list or a map stands where a key should; keys are text")]
    KeyIsNoText,
    /// The same key twice in one map.
    #[error("`{key}` is written twice (first in line {first_line}); delete one")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where it was first.
        first_line: usize,
    },
    /// `<<` with something else than a map.
    #[error("`<<` takes a map, or a list of maps")]
    MergeOfNoMap,
    /// A tag of somebody's own.
    #[error("the tag {0} means nothing here; delete it")]
    UnknownTag(String),

    /// Not a set of rules.
    #[error("is a `{found}`; send a {expected}")]
    OtherResource {
        /// Its type.
        found: String,
        /// The only one there is.
        expected: &'static str,
    },
    /// Bytes that are no message.
    #[error("can't be decoded: {0}")]
    Undecodable(String),

    /// No content.
    #[error("the file is empty; write a `domain` and its `descriptors`")]
    EmptyFile,
    /// A value of the wrong kind.
    #[error("{what} is {found}; write {expected}")]
    WrongKind {
        /// Of which key.
        what: String,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// A key that there isn't.
    #[error("unknown key `{key}` in {within}; {hint}")]
    UnknownKey {
        /// The key.
        key: String,
        /// In what.
        within: &'static str,
        /// Which key was probably meant, or which there are.
        hint: String,
    },
    /// A key that belongs elsewhere.
    #[error("`{key}` has no effect in {within}; it belongs in {belongs_in}")]
    MisplacedKey {
        /// The key.
        key: String,
        /// Where it is.
        within: &'static str,
        /// Where it should be.
        belongs_in: String,
    },
    /// A key that has to be there.
    #[error("{within} needs `{key}`")]
    MissingKey {
        /// The key.
        key: &'static str,
        /// In what.
        within: &'static str,
    },
    /// A key whose text is empty.
    #[error("`{0}` is empty")]
    EmptyText(&'static str),

    /// One domain in two files.
    #[error(
        "domain `{domain}` is in {first} too; write it in one file, or merge files with --merge-domains"
    )]
    DuplicateDomain {
        /// Its name.
        domain: String,
        /// The other file.
        first: String,
    },
    /// Files of one domain that disagree.
    #[error("`{key}` is something else in {first}; the files of one domain must agree")]
    Disagreement {
        /// On which key.
        key: &'static str,
        /// The other file.
        first: String,
    },
    /// The same composite key twice in one list of descriptors.
    #[error(
        "the same key and value are in {first} too; delete one, or give one of them another value"
    )]
    DuplicateDescriptor {
        /// Where the other is.
        first: String,
    },
    /// Neither unit nor `unlimited`.
    #[error("`unit` is missing; write second, minute, hour, day, week, month or year")]
    MissingUnit,
    /// No number, which elsewhere means zero.
    #[error("`requests_per_unit` is missing; write how many may pass (0 denies every request)")]
    MissingRequests,
    /// A limit on what has none.
    #[error("`unlimited` and `{0}` contradict each other; delete one")]
    Unlimited(&'static str),
    /// `unlimited` among other limits.
    #[error("one limit of this list is `unlimited`; the list is either that alone or without it")]
    UnlimitedAmongOthers,
    /// A parameter of another algorithm.
    #[error("`{key}` is for {belongs_to}, and this limit is a {algorithm}")]
    WrongAlgorithm {
        /// The parameter.
        key: &'static str,
        /// Whose it is.
        belongs_to: String,
        /// What the limit is.
        algorithm: &'static str,
    },
    /// A limit that cannot be.
    #[error("{0}")]
    ImpossibleLimit(#[from] LimitError),
    /// A log beyond the domain's bound.
    #[error(
        "a sliding_window_log remembers every request, here {requests} for each value, and {allowed} \
         are allowed; write `algorithm: sliding_window_counter`, or raise `max_log_entries`"
    )]
    LongLog {
        /// Requests per window.
        requests: u32,
        /// What the domain allows.
        allowed: u32,
    },
    /// Two limits that would share a counter.
    #[error("two limits of this rule are a {algorithm} over the same window; delete one")]
    SameCounter {
        /// Their algorithm.
        algorithm: &'static str,
    },
    /// Two names for one rule.
    #[error("the limits of one rule have two names, `{0}` and `{1}`; write one")]
    TwoNames(String, String),
    /// A rule that replaces itself.
    #[error("`replaces` names the rule itself, `{0}`; name another")]
    ReplacesItself(String),
    /// Sharing among the values of one value.
    #[error("`share_threshold` needs a `*` in the value, and `{0}` has none")]
    ShareWithoutWildcard(String),
    /// A network of a value that is fixed.
    #[error("`ip_prefix` groups the values of a key; it has no use beside `{0}`")]
    UselessPrefix(&'static str),
    /// What only a rule can have, without a rule.
    #[error("`{0}` has no effect without a `rate_limit` beside it")]
    NeedsLimit(&'static str),
    /// Metadata that no Struct can hold.
    #[error("`metadata` can't be sent: {0}")]
    Metadata(String),
}

/// Something legal that is probably not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Where.
    pub place: Place,
    /// What.
    pub oddity: Oddity,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.oddity)
    }
}

/// What is legal but odd. (`thiserror` writes the sentences; none of these is an error.)
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Oddity {
    /// Nobody has decided what to do in an outage.
    #[error(
        "no `failure_mode` is written; without the store, the setting --failure-mode decides \
         ({} by default)",
        FailureMode::Open
    )]
    NoFailureMode,
    /// An earlier sibling takes all that this one would match.
    #[error("this never matches: `{0}` takes every value of it")]
    NeverMatches(String),
    /// The same of a wildcard that has a value: a request with just this text still finds it.
    #[error("this matches nothing but its own text: `{0}` takes every other value of it")]
    MatchesItself(String),
    /// A limit of zero.
    #[error("a limit of 0 denies every request")]
    DeniesAll,
    /// A burst of zero.
    #[error("a burst of 0 denies every request; 1 is the least that lets any pass")]
    EmptyBurst,
    /// A log that costs a lot of memory.
    #[error(
        "a sliding_window_log of {0} requests remembers as many instants for each value; \
         sliding_window_counter remembers two numbers"
    )]
    LargeLog(u32),
    /// A key that only a rule makes use of.
    #[error("`{0}` has no effect without a `rate_limit` beside it")]
    NoEffect(&'static str),
    /// Too little to take.
    #[error(
        "`lease` has no effect: {share} of this limit is less than {LEASE_MIN} hits, and fewer are not \
         worth it"
    )]
    SmallLease {
        /// How much an instance may take.
        share: Share,
    },
    /// A lease where each request has several limits to pass.
    #[error("`lease` has no effect where a rule has several limits")]
    LeaseAmongOthers,
    /// Two modes at once.
    #[error("`quota_mode` has no effect beside `shadow_mode`")]
    ShadowedQuota,
    /// Nobody has this name.
    #[error("`replaces` names `{0}`, and no rule of this domain has that name")]
    UnknownName(String),
}
