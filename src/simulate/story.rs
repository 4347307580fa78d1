//! What happened in a run: for people, and as a hash by which two runs are compared.

use std::{cell::RefCell, fmt::Write as _, rc::Rc, time::Duration};

/// The story of a run. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Story(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    hash: blake3::Hasher,
    lines: Vec<String>,
    is_told: bool,
    broken: Option<String>,
}

impl Story {
    /// Prints each line as it happens, too.
    pub(crate) fn told(self) -> Self {
        self.0.borrow_mut().is_told = true;
        self
    }

    /// Something happened.
    pub(crate) fn note(&self, who: &str, what: &str) {
        let at = turmoil::in_simulation().then(turmoil::sim_elapsed).flatten().unwrap_or_default();
        self.note_at(at, who, what);
    }

    /// The same outside of hosts.
    pub(crate) fn note_at(&self, at: Duration, who: &str, what: &str) {
        let mut line = String::new();
        let _ = write!(line, "{:>10.3} {who:<8} {what}", at.as_secs_f64());
        let mut inner = self.0.borrow_mut();
        inner.hash.update(line.as_bytes());
        inner.hash.update(b"\n");
        if inner.is_told {
            println!("{line}");
        }
        inner.lines.push(line);
    }

    /// A claim does not hold. The first is what counts.
    pub(crate) fn broken(&self, claim: &str, how: &str) {
        self.note("claim", &format!("BROKEN {claim}: {how}"));
        self.0.borrow_mut().broken.get_or_insert_with(|| format!("{claim}: {how}"));
    }

    pub(crate) fn is_broken(&self) -> Option<String> {
        self.0.borrow().broken.clone()
    }

    /// The hash over all lines.
    pub(crate) fn hash(&self) -> String {
        self.0.borrow().hash.finalize().to_hex().as_str().chars().take(16).collect()
    }

    /// The last lines.
    pub(crate) fn last(&self, count: usize) -> Vec<String> {
        let inner = self.0.borrow();
        let skip = inner.lines.len().saturating_sub(count);
        inner.lines.iter().skip(skip).cloned().collect()
    }
}
