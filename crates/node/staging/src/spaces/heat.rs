//! Heat maps of what ranks touch: as text, and as a picture.

use mend_data::patterns::sharing::{Block, RankTouches};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Columns of a map.
pub const COLUMNS: usize = 64;
/// From nothing to most.
const SHADES: [char; 8] = [' ', '.', ':', '-', '=', '+', '*', '#'];
/// Size of a cell in a picture, pixels.
const CELL: (usize, usize) = (12, 16);
/// Room for names at the left of a picture, pixels.
const MARGIN: usize = 180;

/// How often each rank touched each part of what any of them touched.
pub struct Heat {
    /// By rank.
    pub rows: BTreeMap<u32, Vec<u64>>,
    /// Blocks of a column.
    pub blocks: usize,
}

impl Heat {
    /// Of these ranks: all blocks in the order of files and places, in [`COLUMNS`] parts at most.
    pub fn of(ranks: &BTreeMap<u32, RankTouches>) -> Self {
        let mut all: Vec<Block> = ranks.values().flat_map(|rank| rank.order.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        let blocks = all.len().div_ceil(COLUMNS).max(1);
        let place: BTreeMap<Block, usize> = all.into_iter().enumerate().map(|(at, block)| (block, at / blocks)).collect();
        let columns = place.values().max().map_or(0, |last| last + 1);
        let row = |rank: &RankTouches| {
            let mut counts = vec![0; columns];
            rank.order.iter().for_each(|block| counts[place[block]] += 1);
            counts
        };
        Self { rows: ranks.iter().map(|(rank, touches)| (*rank, row(touches))).collect(), blocks }
    }

    fn most(&self) -> u64 {
        self.rows.values().flatten().copied().max().unwrap_or(0).max(1)
    }

    /// One line for each rank.
    pub fn text(&self) -> Vec<(u32, String)> {
        let most = self.most();
        let shade = |count: &u64| SHADES[(count * (SHADES.len() as u64 - 1)).div_ceil(most) as usize];
        self.rows.iter().map(|(rank, counts)| (*rank, counts.iter().map(shade).collect())).collect()
    }

    /// A picture with a row for each rank, named by `name`.
    pub fn svg(&self, title: &str, name: impl Fn(u32) -> String) -> String {
        let columns = self.rows.values().map(Vec::len).max().unwrap_or(0);
        let (width, height) = (MARGIN + columns * CELL.0 + 10, 40 + self.rows.len() * CELL.1);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        );
        let _ = writeln!(svg, "<title>{title}</title>\n<text x=\"5\" y=\"18\">{title}</text>", title = escaped(title));
        let most = self.most();
        for (at, (rank, counts)) in self.rows.iter().enumerate() {
            let y = 30 + at * CELL.1;
            let _ = writeln!(svg, "<text x=\"5\" y=\"{}\">{}</text>", y + 12, escaped(&name(*rank)));
            for (column, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let (x, opacity) = (MARGIN + column * CELL.0, 0.15 + 0.85 * *count as f64 / most as f64);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"#b03060\" fill-opacity=\"{opacity:.2}\"><title>{count}</title></rect>",
                    CELL.0 - 1,
                    CELL.1 - 2
                );
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touches(blocks: impl IntoIterator<Item = u32>) -> RankTouches {
        RankTouches { order: blocks.into_iter().map(|block| ([1; 16], block)).collect(), ..RankTouches::default() }
    }

    #[test]
    fn what_is_touched_most_is_darkest() {
        let heat = Heat::of(&[(0, touches((0..6).chain([0, 0, 0]))), (3, touches([5]))].into());
        assert_eq!(heat.blocks, 1);
        let lines = heat.text();
        assert_eq!((lines[0].0, lines[1].0, lines[1].1.as_str()), (0, 3, "     :"));
        assert!(lines[0].1.starts_with('#') && lines[0].1.len() == 6, "{lines:?}");
        let many = Heat::of(&[(0, touches(0..1000))].into());
        assert!(many.text()[0].1.len() <= COLUMNS && many.blocks == 16);
        let svg = heat.svg("a <b>", |rank| format!("rank {rank}"));
        assert!(svg.contains("a &lt;b&gt;") && svg.contains(">rank 3<") && svg.matches("<rect").count() == 7);
        assert!(Heat::of(&BTreeMap::new()).svg("", |_| String::new()).ends_with("</svg>\n"));
    }
}
