//! Private mappings of files that have no name any more.
//!
//! Where the program still holds such a file, the file comes back as memory, and the mapping is one of that memory again: what is
//! written to the file shows in the pages that the program has not changed. Where nobody holds it, nobody can write to it, and the
//! pages come back as memory of their own.

use crate::memory::layout::{Content, Layout};
use crate::memory::maps::Area;
use mend_image::record::mapping;

/// Makes private mappings of held files mappings of those. Once it is known which files are held.
pub(crate) fn share(layout: &mut Layout, areas: &[Area]) {
    for index in 0..layout.plans.len() {
        let plan = &layout.plans[index];
        if plan.content != Content::Everything || plan.mapping.object != mapping::NO_OBJECT {
            continue;
        }
        let start = plan.mapping.start;
        let at = areas.partition_point(|area| area.end <= start);
        let Some(area) = areas.get(at).filter(|area| area.start <= start && !area.shared) else { continue };
        let Some(object) = layout.known_memory(area.identity) else { continue };
        let plan = &mut layout.plans[index];
        plan.mapping.object = object;
        plan.mapping.offset = area.offset + (start - area.start);
        plan.content = Content::Changed;
    }
}
