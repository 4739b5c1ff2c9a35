#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::bodies::fifo(std::time::Instant::now(), input);
});
