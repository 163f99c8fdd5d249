//! Tables of text output: a header, aligned columns, and colours on a terminal.

/// Colour of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    Green,
    Yellow,
    Red,
    Dim,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Red => "31",
            Self::Dim => "2",
        }
    }
}

/// Returns a text with a colour.
fn paint(text: &str, code: &str) -> String {
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    text: String,
    paint: Option<Paint>,
}

impl Cell {
    pub(super) fn painted(text: impl Into<String>, paint: Paint) -> Self {
        Self {
            paint: Some(paint),
            ..Self::from(text.into())
        }
    }
}

impl From<String> for Cell {
    /// Replaces control characters, which a terminal would interpret.
    fn from(mut text: String) -> Self {
        if text.contains(char::is_control) {
            text = text.replace(char::is_control, " ");
        }
        Self { text, paint: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// A table with a header.
#[derive(Debug)]
pub(super) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn new<T: Into<String>>(header: impl IntoIterator<Item = T>) -> Self {
        Self {
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns the text of the table. The last column is not padded.
    pub(super) fn render(&self, has_colour: bool) -> String {
        let mut widths: Vec<usize> = self.header.iter().map(|it| it.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.text.chars().count().max(*width);
            }
        }
        let header: Vec<Cell> = self.header.iter().map(|it| it.as_str().into()).collect();
        let mut out = String::new();
        for (index, row) in std::iter::once(&header).chain(&self.rows).enumerate() {
            let mut line = String::new();
            let mut gap = 0;
            for (cell, width) in row.iter().zip(&widths) {
                let code = match cell.paint {
                    Some(colour) => colour.code(),
                    None if index == 0 => "1",
                    None => "",
                };
                if !cell.text.is_empty() {
                    line.push_str(&" ".repeat(gap));
                    gap = 0;
                    if has_colour && !code.is_empty() {
                        line.push_str(&paint(&cell.text, code));
                    } else {
                        line.push_str(&cell.text);
                    }
                }
                gap += width.saturating_sub(cell.text.chars().count()) + 2;
            }
            out.push_str(&line);
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["NODE", "STATUS", "NOTE"]);
        table.row([
            "web1".into(),
            Cell::painted("online", Paint::Green),
            "".into(),
        ]);
        table.row(["db.example".into(), Cell::default(), "a\u{1b}b".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_and_control_characters_replaced() {
        assert_eq!(
            table().render(false),
            "NODE        STATUS  NOTE\nweb1        online\ndb.example          a b\n"
        );
    }

    #[test]
    fn colours_do_not_change_the_alignment() {
        assert_eq!(
            table().render(true),
            "\u{1b}[1mNODE\u{1b}[0m        \u{1b}[1mSTATUS\u{1b}[0m  \u{1b}[1mNOTE\u{1b}[0m\n\
             web1        \u{1b}[32monline\u{1b}[0m\ndb.example          a b\n"
        );
    }
}
