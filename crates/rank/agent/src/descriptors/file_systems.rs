//! What is known of file systems by their kind, which a magic number tells (statfs(2)).

use rustix::fd::AsFd;

pub(crate) const NFS: u64 = 0x6969;

/// The kind that an open file is on, if the kernel tells.
pub(crate) fn magic_of(file: impl AsFd) -> Option<u64> {
    rustix::fs::fstatfs(file).ok().map(|about| about.f_type as u64)
}

/// The kind that what is at a path is on.
pub(crate) fn magic_at(path: &str) -> Option<u64> {
    rustix::fs::statfs(path).ok().map(|about| about.f_type as u64)
}

/// Whether other nodes see files of such a file system.
pub(crate) fn is_shared_file_system(magic: u64) -> bool {
    // NFS, Lustre, GPFS, CIFS, SMB2, FUSE, Ceph, 9P, BeeGFS, OrangeFS, GFS2, OCFS2, AFS.
    const SHARED: [u64; 13] = [
        NFS,
        0x0bd0_0bd0,
        0x4750_4653,
        0xff53_4d42,
        0xfe53_4d42,
        0x6573_5546,
        0x00c3_6400,
        0x0102_1997,
        0x1983_0326,
        0x2003_0528,
        0x0116_1970,
        0x7461_636f,
        0x5346_414f,
    ];
    SHARED.contains(&magic)
}
