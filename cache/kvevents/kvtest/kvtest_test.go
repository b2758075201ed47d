package kvtest

import "testing"

func TestEveryCaptureIsRead(t *testing.T) {
	want := map[string]int{
		"kv_sha256_b32": 20, "kv_evict_lora_b32": 228, "kv_offload_cpu_cbor_b32": 38,
		"kv_offload_cpu_selfdesc_xxhash_bytes_b32": 38, "kv_dp2_b32": 8, "kv_hybrid_swa_b32": 16, "kv_restart_b32": 4,
		"v0.23.0_kv_sha256_b32": 20,
	}
	for _, name := range Names {
		frames := Captures(t, name)
		if len(frames) != want[name] {
			t.Errorf("%s: %d frames, want %d", name, len(frames), want[name])
		}
		for i, f := range frames {
			if len(f.Payload) == 0 || len(f.Batch) == 0 || f.Phase == "" {
				t.Errorf("%s[%d]: incomplete", name, i)
			}
		}
	}
	if n := len(Layouts(t)); n != 55 {
		t.Errorf("%d layouts, want 55", n)
	}
	if n := len(Payloads(t)); n != 26 {
		t.Errorf("%d payloads, want 26 (K01 to K27 without K21)", n)
	}
}

func TestExchangesKeepTheirReplies(t *testing.T) {
	for name, frames := range map[string]int{"replay_sha256_b32": 4, "v0.23.0_replay_sha256_b32": 3} {
		list := Exchanges(t, name)
		if len(list) < 3 {
			t.Fatalf("%s: %d exchanges", name, len(list))
		}
		for i, want := range []int{21, 3, 1} {
			if e := list[i]; len(e.Replies) != want || len(e.Replies[0]) != frames {
				t.Errorf("%s %s: %d replies of %d frames, want %d of %d", name, e.Case, len(e.Replies), len(e.Replies[0]), want, frames)
			}
		}
	}
}
