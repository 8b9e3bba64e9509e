//! Telling the supervisor how it went.

use core::fmt::{Arguments, Write};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use mend_image::launch::{Failure, GO, Status};
use mend_restore::RestoreError;
use mend_restore::sys;

static CONTROL: AtomicI32 = AtomicI32::new(2);

/// A text of bounded length; what does not fit is cut.
struct Text {
    bytes: [u8; 1024],
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = self.bytes.len() - self.length;
        let count = text.len().min(room);
        self.bytes[self.length..self.length + count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

/// The control descriptor, from now on.
pub fn set_control(fd: i32) {
    CONTROL.store(fd, Ordering::Relaxed);
}

/// The control descriptor.
pub fn control() -> i32 {
    CONTROL.load(Ordering::Relaxed)
}

/// Sends a status.
pub fn status(status: &Status) {
    let sent = sys::write_all(control(), &status.head()).and_then(|()| sys::write_all(control(), status.payload()));
    if sent.is_err() {
        // Nobody is there to restore for.
        sys::exit(1);
    }
}

/// Says why it cannot be done, and ends. Of two threads that fail, one speaks.
pub fn fail(failure: Failure, errno: i32, text: Arguments) -> ! {
    static FAILED: AtomicBool = AtomicBool::new(false);
    while FAILED.swap(true, Ordering::Relaxed) {
        // SAFETY: waits without a descriptor; the other thread ends this one.
        let _ = unsafe { sys::call(sys::POLL, [0, 0, usize::MAX, 0, 0, 0]) };
    }
    let mut bytes = Text { bytes: [0; 1024], length: 0 };
    let _ = bytes.write_fmt(text);
    status(&Status::Failed { failure, errno, text: &bytes.bytes[..bytes.length] });
    sys::exit(1)
}

/// What came out of a step; ends if it failed.
pub fn or_fail<T>(result: Result<T, RestoreError>) -> T {
    result.unwrap_or_else(|error| fail(error.failure(), error.errno(), format_args!("{error}")))
}

/// Waits for the word to go.
pub fn await_go() {
    let mut byte = [0u8; 1];
    loop {
        // SAFETY: reads one byte into `byte`.
        match unsafe { sys::call(sys::READ, [control() as usize, byte.as_mut_ptr() as usize, 1, 0, 0, 0]) } {
            Ok(1) if byte[0] == GO => return,
            Err(sys::EINTR) => {}
            Err(sys::EAGAIN) => drop(sys::readable(control(), -1)),
            _ => sys::exit(1),
        }
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    fail(Failure::Launch, 0, format_args!("defect in the restorer: {info}"))
}
