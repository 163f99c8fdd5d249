//! Tables with aligned columns.

/// Formats rows below a title, with aligned columns. Control characters, which a terminal would
/// interpret, are replaced.
pub(super) fn table<const N: usize>(
    title: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let rows = rows.map(|row| row.map(plain));
    let lines: Vec<[String; N]> = std::iter::once(title.map(String::from))
        .chain(rows)
        .collect();
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn plain(text: String) -> String {
    if text.contains(char::is_control) {
        text.replace(char::is_control, " ")
    } else {
        text
    }
}
