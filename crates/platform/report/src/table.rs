//! Tables that read well for people and for awk: no borders, columns aligned, two blanks between them.

use comfy_table::{ContentArrangement, Table, presets};

/// Blanks between columns.
const GAP: u16 = 2;

/// Rows under a heading, a line each, without a newline at the end. A line is never broken: what does not fit, the terminal wraps.
#[must_use]
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heading.to_vec()).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 3]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn columns_are_aligned_and_lines_end_with_their_last_letter() {
        let rows = [row(["a-1", "running", "./a b"]), row(["longer-2", "ended", ""]), row(["ü", "", "c"])];
        let expected = "JOB       STATE    COMMAND\na-1       running  ./a b\nlonger-2  ended\nü                  c";
        assert_eq!(table(&["JOB", "STATE", "COMMAND"], &rows), expected);
        assert_eq!(table(&["JOB", "STATE"], &[]), "JOB  STATE");
    }

    #[test]
    fn wide_letters_count_as_what_they_take() {
        assert_eq!(table(&["A", "B"], &[vec!["日本".into(), "x".into()]]), "A     B\n日本  x");
    }
}
