//! What a target answers until all of it is removed, and from then on. Invariant: once its removal has begun nothing is taken, and nothing is told of: what goes is not lost.

use super::super::{Answered, Failure, Served};
use super::{DATABASE, Store};
use mend_data::space::target::{Failed, Request};
use std::fs;
use std::io;
use std::sync::PoisonError;

impl Served for Store {
    fn carry_out(&self, request: Request, payload: &[u8]) -> Answered {
        if request == Request::Leave {
            // When all else is over. Nobody takes what goes for lost then, nor brings it back.
            let leaving = |begins: bool| *self.leaving.write().unwrap_or_else(PoisonError::into_inner) = begins;
            leaving(true);
            // If something is in the way it is asked again, and has to be heard until then.
            return self.answer(request, payload).inspect_err(|_| leaving(false));
        }
        let leaving = self.leaving.read().unwrap_or_else(PoisonError::into_inner);
        if *leaving {
            return Err(Failure::new(Failed::Nonsense, "the data space is being removed"));
        }
        self.answer(request, payload)
    }

    fn begun(&self) {
        self.ascertain_all();
    }

    fn is_alone(&self) -> bool {
        // Who has the database has it alone.
        true
    }
}

impl Store {
    /// Removes all of it. Nothing may be asked of it any more.
    pub(super) fn leave(&self) -> Result<(), Failure> {
        // It may have been removed before, by who asked first.
        let is_done =
            |removed: io::Result<()>| removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) });
        is_done(fs::remove_dir_all(&self.objects))?;
        let directory = self.objects.parent().unwrap_or(&self.objects);
        is_done(fs::remove_file(directory.join(DATABASE)))?;
        // It may be a mount point, or not ours to remove.
        let _ = fs::remove_dir(directory);
        Ok(())
    }
}
