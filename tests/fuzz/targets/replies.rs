#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::bodies::replies(std::time::Instant::now(), input);
});
