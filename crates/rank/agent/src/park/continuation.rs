//! Calls that had moved a part of their bytes when parking ended them: a write into a pipe or a socket that is full, a receive that waits for all of its
//! bytes. They return that part, as a program sees it otherwise only after a handler of its own. So the rest is asked for, and the program is told the sum.
//!
//! ```text
//! handler: a part ─► thread goes on in [`go_on`]: the rest of the buffer ─► the program, after its call, with the sum
//!            ▲                     │ parked once more: a part of the rest
//!            └─────────────────────┘ handler: counted where `go_on` counts; the call is made again
//! ```
//! `go_on` uses the thread's stack below the red zone, and no other memory. It makes one call: whatever else ends that one, a handler of the program's among them,
//! is the program's to see.

use mend_freestanding::{check, syscall};

/// Registers of a signal frame.
type Registers = [libc::greg_t; 23];

/// Bytes of its stack that a function may use without saying so (System V ABI, AMD64, 3.2.2).
const RED_ZONE: usize = 128;
/// Where `go_on` counts, from its stack pointer while it calls.
const COUNT: u64 = 8;

core::arch::global_asm!(
    ".pushsection .text.mend_go_on, \"ax\", @progbits",
    ".globl mend_go_on",
    ".hidden mend_go_on",
    ".globl mend_gone_on",
    ".hidden mend_gone_on",
    ".type mend_go_on, @function",
    "mend_go_on:",
    ".cfi_startproc",
    // rax: the call's number, rcx: where the program goes on, r11: bytes that were moved; all else as the program made its call.
    ".cfi_def_cfa rsp, 0",
    ".cfi_register rip, rcx",
    "lea rsp, [rsp - {red_zone}]",
    ".cfi_def_cfa rsp, {red_zone}",
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rip, -{red_zone} - 8",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    "pushfq",
    ".cfi_adjust_cfa_offset 8",
    "add rsi, r11",
    "sub rdx, r11",
    "syscall",
    "mend_gone_on:",
    // An error after a part is told by the next call.
    "test rax, rax",
    "jns 2f",
    "xor eax, eax",
    "2:",
    "sub rsi, [rsp + {count}]",
    "add rdx, [rsp + {count}]",
    "add rax, [rsp + {count}]",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_register rip, rcx",
    "lea rsp, [rsp + {red_zone}]",
    ".cfi_def_cfa rsp, 0",
    "jmp rcx",
    ".cfi_endproc",
    ".size mend_go_on, . - mend_go_on",
    ".popsection",
    red_zone = const RED_ZONE,
    count = const COUNT,
);

unsafe extern "C" {
    /// Begins here.
    fn mend_go_on();
    /// After its call.
    fn mend_gone_on();
}

/// Has the thread ask for the rest, if there is one and the call can be continued. `registers` are those after the call, with a part of its bytes moved.
/// True: they are changed. Async-signal-safe.
///
/// # Safety
/// The registers are those of the calling thread, of a call that it was blocked in and that a signal ended.
pub(super) unsafe fn take_up(number: i64, registers: &mut Registers) -> bool {
    let register = |index: i32| registers[index as usize];
    let (moved, wanted) = (register(libc::REG_RAX), register(libc::REG_RDX));
    if moved <= 0 || moved >= wanted || !continues(number, register(libc::REG_RDI) as usize, register(libc::REG_R10) as i32) {
        return false;
    }
    let next = register(libc::REG_RIP) as u64;
    if next == mend_gone_on as *const () as u64 {
        let count = (register(libc::REG_RSP) as u64 + COUNT) as *mut i64;
        // SAFETY: `go_on` has its own part of the thread's stack, above the signal frame.
        unsafe { *count += moved };
        registers[libc::REG_RSI as usize] += moved;
        registers[libc::REG_RDX as usize] -= moved;
        registers[libc::REG_RIP as usize] = (next - 2) as i64;
    } else {
        registers[libc::REG_RCX as usize] = next as i64;
        registers[libc::REG_R11 as usize] = moved;
        registers[libc::REG_RIP as usize] = mend_go_on as *const () as i64;
    }
    registers[libc::REG_RAX as usize] = number;
    true
}

/// Whether a call of this number, of a buffer in rsi and rdx, with these flags if it is one of a socket's, goes on where a part of it ended: the other side sees a stream of bytes.
fn continues(number: i64, descriptor: usize, flags: i32) -> bool {
    const FORMATS: u32 = libc::S_IFMT;
    let mut about = [0u64; 18];
    // SAFETY: fstat writes 144 bytes.
    if check(unsafe { syscall(libc::SYS_fstat, [descriptor, about.as_mut_ptr() as usize, 0, 0, 0, 0]) }).is_err() {
        return false;
    }
    let is_stream = || {
        let (mut kind, mut length) = (0i32, size_of::<i32>() as u32);
        let (level, name) = (libc::SOL_SOCKET as usize, libc::SO_TYPE as usize);
        let arguments = [descriptor, level, name, (&raw mut kind) as usize, (&raw mut length) as usize, 0];
        // SAFETY: getsockopt writes one int, and its length.
        check(unsafe { syscall(libc::SYS_getsockopt, arguments) }).is_ok() && kind == libc::SOCK_STREAM
    };
    // struct stat on x86-64: mode at 24.
    let format = about[3] as u32 & FORMATS;
    match number {
        libc::SYS_write => format == libc::S_IFIFO || format == libc::S_IFCHR || (format == libc::S_IFSOCK && is_stream()),
        libc::SYS_sendto => format == libc::S_IFSOCK && is_stream(),
        libc::SYS_recvfrom => {
            flags & libc::MSG_WAITALL != 0 && flags & (libc::MSG_PEEK | libc::MSG_OOB) == 0 && format == libc::S_IFSOCK && is_stream()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    /// Calls with everything in its register that a program may have there, by way of [`take_up`]: what comes back, and whether anything else changed.
    #[unsafe(naked)]
    extern "C" fn enter(_registers: *mut Registers, _result: *mut [u64; 4]) {
        core::arch::naked_asm!(
            "push rbx",
            "push rbp",
            "push r12",
            "mov rbx, rsi",
            "mov rbp, rsp",
            "mov r12, rdi",
            "mov rax, [r12 + 8 * {rax}]",
            "mov rdi, [r12 + 8 * {rdi}]",
            "mov rsi, [r12 + 8 * {rsi}]",
            "mov rdx, [r12 + 8 * {rdx}]",
            "mov r10, [r12 + 8 * {r10}]",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "mov r11, [r12 + 8 * {r11}]",
            "mov qword ptr [rsp - 8], 77",
            "lea rcx, [rip + 3f]",
            "jmp [r12 + 8 * {rip}]",
            "3:",
            "mov [rbx], rax",
            "mov [rbx + 8], rsi",
            "mov [rbx + 16], rdx",
            "sub rbp, rsp",
            "add rbp, [rsp - 8]",
            "mov [rbx + 24], rbp",
            "pop r12",
            "pop rbp",
            "pop rbx",
            "ret",
            rax = const libc::REG_RAX,
            rdi = const libc::REG_RDI,
            rsi = const libc::REG_RSI,
            rdx = const libc::REG_RDX,
            r10 = const libc::REG_R10,
            r11 = const libc::REG_R11,
            rip = const libc::REG_RIP,
        )
    }

    fn after(descriptor: i32, buffer: &[u8], moved: usize, flags: i32) -> Registers {
        let mut registers = [0; 23];
        registers[libc::REG_RAX as usize] = moved as i64;
        registers[libc::REG_RDI as usize] = descriptor.into();
        registers[libc::REG_RSI as usize] = buffer.as_ptr() as i64;
        registers[libc::REG_RDX as usize] = buffer.len() as i64;
        registers[libc::REG_R10 as usize] = flags.into();
        registers
    }

    #[test]
    fn the_rest_is_asked_for_and_the_sum_is_told() {
        let (reader, writer) = std::io::pipe().unwrap();
        let buffer = *b"a part, and the rest of it";
        let mut registers = after(writer.as_raw_fd(), &buffer, 7, 0);
        // SAFETY: as if the thread had written seven bytes.
        assert!(unsafe { take_up(libc::SYS_write, &mut registers) });
        let mut result = [0; 4];
        enter(&mut registers, &mut result);
        let begin = buffer.as_ptr() as u64;
        assert_eq!(result, [buffer.len() as u64, begin, buffer.len() as u64, 77]);
        let mut got = [0; 64];
        assert_eq!(rustix::io::read(&reader, &mut got), Ok(buffer.len() - 7));
        assert_eq!(got[..buffer.len() - 7], buffer[7..]);
        // An error after a part: the part.
        let mut registers = after(writer.as_raw_fd(), &buffer, 9, 0);
        // SAFETY: as above.
        assert!(unsafe { take_up(libc::SYS_write, &mut registers) });
        registers[libc::REG_RDI as usize] = -1;
        enter(&mut registers, &mut result);
        assert_eq!(result, [9, begin, buffer.len() as u64, 77]);
    }

    #[test]
    fn what_is_parked_once_more_counts_further() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let buffer = [0; 100];
        let mut stack = [0i64; 3];
        stack[1] = 30;
        let mut registers = after(writer.as_raw_fd(), &buffer[30..], 20, 0);
        registers[libc::REG_RSP as usize] = stack.as_mut_ptr() as i64;
        registers[libc::REG_RIP as usize] = mend_gone_on as *const () as i64;
        // SAFETY: as if `go_on` had called.
        assert!(unsafe { take_up(libc::SYS_write, &mut registers) });
        // SAFETY: this function's own; it was written to by its address.
        assert_eq!(unsafe { core::ptr::read_volatile(&raw const stack[1]) }, 50);
        let register = |index: i32| registers[index as usize];
        assert_eq!(register(libc::REG_RSI), buffer.as_ptr() as i64 + 50);
        assert_eq!((register(libc::REG_RDX), register(libc::REG_RAX)), (50, libc::SYS_write));
        assert_eq!(register(libc::REG_RIP), mend_gone_on as *const () as i64 - 2);
    }

    #[test]
    fn only_streams_of_bytes_go_on() {
        let buffer = [0; 100];
        let (stream, _other) = UnixStream::pair().unwrap();
        let (datagrams, _others) = UnixDatagram::pair().unwrap();
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let may = |number, descriptor: i32, moved, flags| {
            let mut registers = after(descriptor, &buffer, moved, flags);
            // SAFETY: nothing is called.
            unsafe { take_up(number, &mut registers) }
        };
        let (stream, datagrams, file) = (stream.as_raw_fd(), datagrams.as_raw_fd(), file.as_raw_fd());
        assert!(may(libc::SYS_write, stream, 1, 0) && may(libc::SYS_sendto, stream, 99, 0));
        assert!(may(libc::SYS_recvfrom, stream, 1, libc::MSG_WAITALL));
        assert!(!may(libc::SYS_recvfrom, stream, 1, 0) && !may(libc::SYS_recvfrom, stream, 1, libc::MSG_WAITALL | libc::MSG_PEEK));
        assert!(!may(libc::SYS_write, stream, 100, 0) && !may(libc::SYS_write, stream, 0, 0));
        assert!(!may(libc::SYS_recvfrom, datagrams, 1, libc::MSG_WAITALL) && !may(libc::SYS_write, datagrams, 1, 0));
        assert!(!may(libc::SYS_write, file, 1, 0) && !may(libc::SYS_read, stream, 1, 0) && !may(libc::SYS_write, -1, 1, 0));
    }
}
