package client

import "testing"

func TestBody(t *testing.T) {
	for _, size := range []int{0, minBody, minBody + 1, 100, 8192} {
		for _, key := range []uint64{1, 2, 1 << 40} {
			b := Body(key, size)
			if len(b) != max(size, minBody) {
				t.Errorf("size %d: %d bytes", size, len(b))
			}
			if got, ok := Key(b); !ok || got != key {
				t.Errorf("size %d: key %d reads as %d, %t", size, key, got, ok)
			}
			for i := minBody; i < len(b); i++ {
				if want := byte(key>>(i%8)) ^ byte(i); b[i] != want {
					t.Fatalf("size %d: byte %d of key %d is %d, want %d", size, i, key, b[i], want)
				}
			}
			for i := range b {
				b[i] ^= 0x40
				if _, ok := Key(b); ok {
					t.Errorf("size %d: a changed byte %d is not noticed", size, i)
				}
				b[i] ^= 0x40
			}
			if _, ok := Key(b[:len(b)-1]); ok {
				t.Errorf("size %d: a missing byte is not noticed", size)
			}
		}
	}
}
