//! Memory of buffers. The only test of its process, whose memory it measures.

use steadfs_block::Buf;

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages = statm
        .split(' ')
        .nth(1)
        .expect("the second word is resident pages");
    pages.parse::<usize>().expect("a number") * 4096
}

#[test]
fn blocks_cost_their_size_and_memory_is_given_back() {
    const TOTAL: usize = 256 << 20;
    for len in [1024, 4096, 65536] {
        let before = resident();
        let bufs: Vec<Buf> = (0..TOTAL / len)
            .map(|_| Buf::with_bytes(len, |b| b.fill(1)))
            .collect();
        let grown = resident() - before;
        assert!(grown < TOTAL * 5 / 4, "{len}: {grown} bytes for {TOTAL}");
        drop(bufs);
        let left = resident().saturating_sub(before);
        assert!(left < TOTAL / 4, "{len}: {left} bytes are kept");
    }
}
