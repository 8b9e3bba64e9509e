//! What is known of file systems by their kind.

/// Whether other nodes see files of this file system, by its magic number (see statfs(2)).
pub(crate) fn is_shared_file_system(magic: u64) -> bool {
    // NFS, Lustre, GPFS, CIFS, SMB2, FUSE, Ceph, 9P, BeeGFS, OrangeFS, GFS2, OCFS2, AFS.
    const SHARED: [u64; 13] = [
        0x6969,
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
