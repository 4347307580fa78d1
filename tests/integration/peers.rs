//! The comparison with other servers, as far as it goes without them: what it explains, refuses and
//! renews.

use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{runs, skip};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn peers(arguments: &[&str]) -> Output {
    let script = Path::new(ROOT).join("benches/peers.py");
    Command::new("python3").arg(script).args(arguments).output().expect("python3 runs")
}

#[test]
fn the_comparison_explains_itself_and_starts_nothing_that_it_cannot_finish() {
    if !runs("python3", &["--version"]) {
        return skip("peers", "python3 is absent");
    }
    let help = peers(&["--help"]);
    let said = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success(), "{said}");
    for option in ["--servers", "--seconds", "--waiting", "--only", "--update"] {
        assert!(said.contains(option), "{option} is not in {said}");
    }
    let refused: [(&[&str], &str); 5] = [
        (&["--servers", "logcabin,nobody"], "no such server: nobody"),
        (&["--seconds", "0"], "not more than nothing: 0"),
        (&["--waiting", "-1"], "not more than nothing: -1"),
        (&["--update", "--only", "send"], "--update wants all"),
        (&["--elsewhere"], "unrecognized arguments: --elsewhere"),
    ];
    for (arguments, reason) in refused {
        let output = peers(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(reason), "{arguments:?}: expected {reason:?} in {said}");
    }
}

#[test]
fn the_chapter_on_performance_has_a_place_for_every_measurement() {
    let chapter = include_str!("../../docs/performance.md");
    for block in ["peers", "load", "growth", "compression"] {
        let (begin, end) = (format!("<!-- {block}: -->\n"), format!("<!-- :{block} -->"));
        let table = chapter.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
        let (table, _) = table.unwrap_or_else(|| panic!("{begin} … {end} is not in the chapter"));
        assert!(table.contains("|---"), "there is no table between {begin} and {end}");
    }
    for plot in ["peers.svg", "load.svg"] {
        assert!(chapter.contains(plot), "the chapter does not show {plot}");
        assert!(Path::new(ROOT).join("docs").join(plot).exists(), "{plot} is missing");
    }
}
