//! Files that whoever made them did not end making: the power of their targets failed, or all of them ended, when some had the entry and others not yet.
//!
//! Nobody was told that such a file is there, so nothing was written to it. It is seen, since a target has its entry, and cannot be read, since another one has never heard of it.
//! It becomes an empty file. A file that is on other targets by now (its epoch is above 0) was whole once.

use super::writer::{Refused, Writer};
use super::written_copies::BadCopies;
use mend_data::space::target::Request;
use mend_data::space::written::Shape;
use std::collections::BTreeMap;

impl Writer {
    /// Has targets that have never heard of a file keep their part of it, empty. True if there were such, and the file lacks nothing any more for their sake.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn end_making(&self, bad: &BadCopies) -> Result<bool, Refused> {
        let file = bad.entry.id;
        let is_new = |epoch: u32, filling: &[u16]| epoch == 0 && filling.is_empty();
        if bad.lost.is_empty() || !bad.entry.written().is_some_and(|known| is_new(known.epoch, &known.filling)) {
            return Ok(false);
        }
        self.as_named(&file, |_| {
            let (entry, known) = self.now(&file)?;
            if !is_new(known.epoch, &known.filling) {
                return Ok(false);
            }
            let holders = entry.holders(self.client.targets());
            let told = self
                .client
                .each(&holders, |at, peer| Some((at, peer.shapes(vec![file]).ok()?.into_iter().flatten().collect::<Vec<Shape>>())));
            let told: BTreeMap<u16, Vec<Shape>> = told.into_iter().flatten().flatten().collect();
            // What any of them has written is copied to the others, not lost.
            let has_bytes = told.values().flatten().any(|shape| shape.length > 0);
            if has_bytes || told.len() < holders.len() {
                return Ok(false);
            }
            let lack: Vec<u16> = told.iter().filter(|(_, shapes)| shapes.is_empty()).map(|(at, _)| *at).collect();
            let adopt = |at: u16| {
                let positions: Vec<u16> = known.positions(at).collect();
                Request::Adopt { entry: Box::new(entry.clone()), fresh: positions.clone(), positions }
            };
            self.client.ask_each(&lack, adopt).into_iter().collect::<Result<Vec<_>, _>>()?;
            // One that has heard of it, and lost its objects, has made none.
            let made =
                self.client.each(&lack, |at, peer| peer.shapes(vec![file]).is_ok_and(|told| told[0].len() == known.positions(at).count()));
            Ok(!lack.is_empty() && made.into_iter().all(|made| made == Some(true)))
        })
    }
}
