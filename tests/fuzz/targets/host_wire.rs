#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::bodies::host_wire(std::time::Instant::now(), input);
});
