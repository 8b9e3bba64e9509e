//! What one process does with a space at a time: it says again and again that it is at it, until it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A turn, held until it is dropped.
pub struct Turn {
    over: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
    say: Arc<dyn Fn(bool) -> bool + Send + Sync>,
}

impl Turn {
    /// Held from now on. `say` is called as often, and with true at the end; it gives false if another one has the turn by then.
    pub fn held(every: Duration, say: impl Fn(bool) -> bool + Send + Sync + 'static) -> Self {
        let turn = Self { over: Arc::default(), lost: Arc::default(), say: Arc::new(say) };
        let (over, lost, say) = (turn.over.clone(), turn.lost.clone(), turn.say.clone());
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(every);
                if over.load(Ordering::Relaxed) {
                    return;
                }
                lost.store(!say(false), Ordering::Relaxed);
            }
        });
        turn
    }

    /// Another one has it: this process was stopped for too long.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        (self.say)(true);
    }
}
