//! Heat maps of what ranks touch: as text, and as a picture.

use mend_data::patterns::sharing::RankTouches;
use mend_data::space::Id;
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
    pub blocks: u64,
}

impl Heat {
    /// Of these ranks: all blocks in the order of files and places, in [`COLUMNS`] parts at most.
    pub fn of(ranks: &BTreeMap<u32, RankTouches>) -> Self {
        let parts = parts(ranks.values().flat_map(|rank| rank.ranges.iter()).filter(|(.., count)| *count > 0));
        let all = parts.last().map_or(0, |last| last.place + last.blocks);
        let blocks = all.div_ceil(COLUMNS as u64).max(1);
        let row = |rank: &RankTouches| {
            let mut counts = vec![0; all.div_ceil(blocks) as usize];
            for (file, first, count) in &rank.ranges {
                let part = &parts[parts.partition_point(|part| (part.file, part.first) <= (*file, *first)).saturating_sub(1)..];
                let Some(part) = part.first() else { continue };
                let mut at = part.place + u64::from(first - part.first);
                let end = at + u64::from(*count);
                while at < end {
                    let column = at / blocks;
                    let until = end.min((column + 1) * blocks);
                    counts[column as usize] += until - at;
                    at = until;
                }
            }
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

/// Blocks of a file without a gap that anybody touched.
struct Part {
    file: Id,
    first: u32,
    blocks: u64,
    /// How many blocks all parts before it have.
    place: u64,
}

/// These ranges put together, in the order of files and places.
fn parts<'a>(ranges: impl Iterator<Item = &'a (Id, u32, u32)>) -> Vec<Part> {
    let mut ranges: Vec<&(Id, u32, u32)> = ranges.collect();
    ranges.sort_unstable();
    let mut parts: Vec<Part> = Vec::new();
    for (file, first, count) in ranges {
        let end = u64::from(*first) + u64::from(*count);
        match parts.last_mut() {
            Some(part) if part.file == *file && u64::from(*first) <= u64::from(part.first) + part.blocks => {
                part.blocks = part.blocks.max(end - u64::from(part.first));
            }
            last => {
                let place = last.map_or(0, |last| last.place + last.blocks);
                parts.push(Part { file: *file, first: *first, blocks: (*count).into(), place });
            }
        }
    }
    parts
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touches(blocks: impl IntoIterator<Item = u32>) -> RankTouches {
        RankTouches { ranges: blocks.into_iter().map(|block| ([1; 16], block, 1)).collect(), ..RankTouches::default() }
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
        // Ranges count as their blocks do, also over the borders of columns and of files.
        let ranges = |ranges: &[(u8, u32, u32)]| RankTouches {
            ranges: ranges.iter().map(|(file, first, count)| ([*file; 16], *first, *count)).collect(),
            ..RankTouches::default()
        };
        let each: Vec<(u8, u32, u32)> = (0..100).map(|at| (1, 1000 + at, 1)).chain((0..60).map(|at| (2, at, 1))).collect();
        let [whole, apart] = [&[(1, 1000, 90), (1, 1040, 60), (2, 0, 60)][..], &each]
            .map(|all| Heat::of(&[(0, ranges(all)), (1, ranges(&[(2, 30, 9)]))].into()));
        let twice = Heat::of(&[(0, ranges(&[&each[..], &each[40..90]].concat())), (1, ranges(&[(2, 30, 9)]))].into());
        assert_eq!((whole.blocks, whole.rows[&0].iter().sum::<u64>()), (3, 210));
        assert_eq!((whole.rows[&1].clone(), whole.rows[&0].clone()), (apart.rows[&1].clone(), twice.rows[&0].clone()));
        let svg = heat.svg("a <b>", |rank| format!("rank {rank}"));
        assert!(svg.contains("a &lt;b&gt;") && svg.contains(">rank 3<") && svg.matches("<rect").count() == 7);
        assert!(Heat::of(&BTreeMap::new()).svg("", |_| String::new()).ends_with("</svg>\n"));
    }
}
