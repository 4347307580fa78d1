//! Terminal output: colours, widths, tables, and making foreign text harmless.

use std::io;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthChar;

pub(super) const PLAIN: Style = Style::new();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(super) const BLUE: Style = AnsiColor::Blue.on_default();
pub(super) const MAGENTA: Style = AnsiColor::Magenta.on_default();
pub(super) const CYAN: Style = AnsiColor::Cyan.on_default();

/// The least width of a column that may be cut.
const LEAST_WIDTH: usize = 10;

/// If a column would be cut to less than this, other columns are left out instead.
const FAIR_WIDTH: usize = 20;

/// The capabilities of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Whether it shows colours.
    pub colour: bool,
    /// Its width in columns; none if it is not a terminal, where nothing is cut.
    pub width: Option<usize>,
}

impl Layout {
    /// The capabilities of standard output. Honours `NO_COLOR` and the like.
    pub fn of_stdout() -> Self {
        let colour = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        let width = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into());
        Self { colour, width }
    }

    /// `text` in `style`. The text must be harmless: see [`clean`].
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        if self.colour && style != PLAIN && !text.is_empty() {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }

    /// The columns that are left after `used`.
    pub(super) fn left(&self, used: usize) -> usize {
        self.width.map_or(usize::MAX, |width| width.saturating_sub(used).max(LEAST_WIDTH))
    }
}

/// `text` on one line, without characters that control a terminal or change the direction of text.
pub fn clean(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' => '⏎',
        '\t' => ' ',
        c if c.is_control() => '·',
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '·',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// The width of `text` in columns.
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// `text`, cut to `columns`.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |c: &char| {
        let wide = c.width().unwrap_or(0);
        let fits = wide <= left;
        left = left.saturating_sub(if fits { wide } else { left });
        fits
    };
    let mut kept: String = text.chars().take_while(fits).collect();
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// `text`, cut in its middle to `columns`: both ends of ids and paths tell something.
fn cut_middle(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let left = columns.saturating_sub(1);
    let end: Vec<char> = fitting(text.chars().rev(), left / 2);
    let used: usize = end.iter().filter_map(|c| c.width()).sum();
    let begin: Vec<char> = fitting(text.chars(), left - used);
    let middle = (columns > 0).then_some('…');
    begin.into_iter().chain(middle).chain(end.into_iter().rev()).collect()
}

/// The first of `chars` that fit into `columns`.
fn fitting(chars: impl Iterator<Item = char>, columns: usize) -> Vec<char> {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= columns
    };
    chars.take_while(fits).collect()
}

/// `text` in lines of at most `columns`, broken at blanks, and within words that are longer.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && width(&line) + 1 + width(word) > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        let mut used = width(&line);
        for c in word.chars() {
            let wide = c.width().unwrap_or(0);
            if used + wide > columns && used > 0 {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(c);
            used += wide;
        }
    }
    lines.push(line);
    lines
}

/// Rows of a table, with aligned columns. If `most` columns do not suffice, the widest cells are
/// cut in their middle, but for those of the last column, which go on in the next line.
pub fn aligned<const N: usize>(rows: &[[String; N]], most: Option<usize>) -> String {
    let widest = |column: usize| rows.iter().map(|row| width(&row[column])).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..N).map(widest).collect();
    if let Some(most) = most {
        let gaps = 2 * N.saturating_sub(1);
        let taken = widths.iter().sum::<usize>() + gaps;
        for _ in most..taken {
            let widest = widths.iter_mut().filter(|wide| **wide > LEAST_WIDTH).max();
            let Some(widest) = widest else { break };
            *widest -= 1;
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        let mut used = 0;
        for (column, (cell, wide)) in row.iter().zip(&widths).enumerate() {
            if column + 1 < N {
                let cell = cut_middle(cell, *wide);
                line += &cell;
                line.extend(std::iter::repeat_n(' ', wide - width(&cell) + 2));
                used += wide + 2;
                continue;
            }
            for (index, part) in wrapped(cell, *wide).iter().enumerate() {
                if index > 0 {
                    text += line.trim_end();
                    text.push('\n');
                    line = " ".repeat(used);
                }
                line += part;
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// `text`, cut or padded to exactly `columns`.
pub(super) fn pad(text: &str, columns: usize) -> String {
    let mut text = cut(text, columns);
    let missing = columns.saturating_sub(width(&text));
    text.extend(std::iter::repeat_n(' ', missing));
    text
}

/// A number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A length of time in its two largest units.
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A number of bytes, in a suitable unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if count < 1_000 {
        return format!("{count} B");
    }
    // For reading, a tenth of a unit does not matter.
    let mut size = count as f64 / 1_000.0;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        if size < 1_000.0 {
            break;
        }
        size /= 1_000.0;
        unit = larger;
    }
    format!("{size:.1} {unit}")
}

/// The layout of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnLayout {
    Left,
    Right,
    /// Left-aligned, and cut if the terminal is too narrow.
    Flexible,
    /// Left-aligned, and left out if the terminal is too narrow.
    Optional,
}

/// A table with aligned columns.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<(&'static str, ColumnLayout)>,
    rows: Vec<Vec<(String, Style)>>,
}

impl Table {
    pub(super) fn new(columns: &[(&'static str, ColumnLayout)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [(String, Style); N]) {
        self.rows.push(cells.into_iter().map(|(text, style)| (clean(&text), style)).collect());
    }

    pub(super) fn render(&self, look: &Layout) -> String {
        let columns = self.widths(look);
        let mut out = String::new();
        let titles = self.columns.iter().map(|(title, _)| ((*title).to_owned(), DIM)).collect();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let row: &Vec<(String, Style)> = row;
            let mut line = String::new();
            // Padding is written only before a next cell, so that no line ends in blanks.
            let mut gap = 0;
            for (index, wide) in &columns {
                let Some((text, style)) = row.get(*index) else { continue };
                let text = cut(text, *wide);
                if text.is_empty() {
                    gap += wide + 2;
                    continue;
                }
                let filling = wide - width(&text);
                let right =
                    self.columns.get(*index).is_some_and(|(_, set)| *set == ColumnLayout::Right);
                let (before, after) = if right { (filling, 0) } else { (0, filling) };
                line.extend(std::iter::repeat_n(' ', gap + before));
                line.push_str(&look.paint(*style, &text));
                gap = after + 2;
            }
            out.push_str(&line);
            out.push('\n');
        }
        out
    }

    /// The columns that are shown, each with its width. Empty ones are not.
    fn widths(&self, look: &Layout) -> Vec<(usize, usize)> {
        let set = |index: usize| self.columns.get(index).map(|(_, set)| *set);
        let widest = |index: usize, (title, _): &(&str, ColumnLayout)| {
            let texts = self.rows.iter().filter_map(|row| Some(width(&row.get(index)?.0)));
            let widest = texts.max().unwrap_or(0);
            (widest > 0).then(|| (index, widest.max(width(title))))
        };
        let mut widths: Vec<_> = self
            .columns
            .iter()
            .enumerate()
            .filter_map(|(index, column)| widest(index, column))
            .collect();
        let Some(available) = look.width else { return widths };
        let gaps = |widths: &[(usize, usize)]| 2 * widths.len().saturating_sub(1);
        loop {
            let fair = |(index, wide): &(usize, usize)| match set(*index) {
                Some(ColumnLayout::Flexible) => (*wide).min(FAIR_WIDTH),
                _ => *wide,
            };
            let least = widths.iter().map(fair).sum::<usize>() + gaps(&widths);
            let optional =
                widths.iter().rposition(|(index, _)| set(*index) == Some(ColumnLayout::Optional));
            match optional {
                Some(optional) if least > available => drop(widths.remove(optional)),
                _ => break,
            }
        }
        let taken = widths.iter().map(|(_, wide)| wide).sum::<usize>() + gaps(&widths);
        for _ in available..taken {
            // Columns that may be cut give way first, the widest before the others.
            let widest = widths
                .iter_mut()
                .filter(|(_, wide)| *wide > LEAST_WIDTH)
                .max_by_key(|(index, wide)| (set(*index) == Some(ColumnLayout::Flexible), *wide));
            match widest {
                Some((_, wide)) => *wide -= 1,
                None => break,
            }
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_control_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\u{9b}c\u{202e}d\ne\rf"), "a·[31mb·c·d⏎e·f");
    }

    #[test]
    fn text_is_cut_by_columns_and_not_by_bytes() {
        assert_eq!(cut("häuser", 6), "häuser");
        assert_eq!(cut("häuser", 5), "häus…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(width(&pad("日本語", 9)), 9);
        assert_eq!(cut("ab", 0), "");
    }

    #[test]
    fn wide_values_are_cut_in_the_middle_or_wrapped() {
        assert_eq!(cut_middle("!abcdef:example.org", 11), "!abcd…e.org");
        assert_eq!(cut_middle("short", 11), "short");
        assert_eq!(width(&cut_middle("日本語日本語日本語", 7)), 7);
        assert_eq!(wrapped("a bc defghij k", 4), ["a bc", "defg", "hij", "k"]);
        let id = format!("!{}:example.org", "r".repeat(50));
        let rows = [["ROOM", "WHY"].map(str::to_owned), [id.clone(), "because ".repeat(10)]];
        let narrow = aligned(&rows, Some(60));
        assert!(narrow.lines().all(|line| width(line) <= 60), "{narrow}");
        assert_eq!(narrow.matches("because").count(), 10, "{narrow}");
        assert!(narrow.contains("…"), "{narrow}");
        let wide = aligned(&rows, None);
        assert!(wide.lines().count() == 2 && wide.contains(&id), "{wide}");
    }

    #[test]
    fn a_table_fits_its_terminal() {
        let mut table = Table::new(&[
            ("N", ColumnLayout::Right),
            ("TEXT", ColumnLayout::Flexible),
            ("X", ColumnLayout::Left),
        ]);
        table.row([("5".to_owned(), PLAIN), ("a".repeat(80), PLAIN), ("end".to_owned(), BOLD)]);
        table.row([("50".to_owned(), PLAIN), ("b".to_owned(), PLAIN), (String::new(), PLAIN)]);
        let narrow = table.render(&Layout { colour: false, width: Some(40) });
        assert!(narrow.lines().all(|line| width(line) <= 40), "{narrow}");
        assert_eq!(narrow.lines().nth(2), Some("50  b"));
        let mut table = Table::new(&[
            ("A", ColumnLayout::Flexible),
            ("B", ColumnLayout::Optional),
            ("EMPTY", ColumnLayout::Left),
        ]);
        table.row([("a".repeat(30), PLAIN), ("b".repeat(15), PLAIN), (String::new(), PLAIN)]);
        let fits = |width| table.render(&Layout { colour: false, width: Some(width) });
        assert!(fits(40).contains("bbb") && !fits(40).contains("EMPTY"));
        assert!(!fits(36).contains("bbb"));
        let mut table = Table::new(&[("TEXT", ColumnLayout::Flexible), ("X", ColumnLayout::Left)]);
        table.row([("a".repeat(80), PLAIN), ("end".to_owned(), BOLD)]);
        let wide = table.render(&Layout::default());
        assert!(wide.contains(&"a".repeat(80)));
        assert!(!wide.contains('\u{1b}'));
        let coloured = table.render(&Layout { colour: true, width: None });
        assert!(coloured.contains('\u{1b}'));
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([grouped(7), grouped(1_234), grouped(1_234_567)], ["7", "1,234", "1,234,567"]);
        assert_eq!([bytes(999), bytes(1_500), bytes(2_500_000)], ["999 B", "1.5 kB", "2.5 MB"]);
    }
}
