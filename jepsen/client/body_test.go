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

// A brief body is known by its key and its length.
func TestBrief(t *testing.T) {
	var b []byte
	for _, size := range []int{1 << 10, 0, 100, minBody + 1, 8192} {
		for _, key := range []uint64{0, 1, 2, 1 << 40, 3<<40 | 5} {
			b = Brief(b, key, size)
			if len(b) != max(size, minBody) {
				t.Errorf("size %d: %d bytes", size, len(b))
			}
			if got, ok := Key(b); !ok || got != key {
				t.Errorf("size %d: key %d reads as %d, %t", size, key, got, ok)
			}
			for bit := range 8 * minBody {
				b[bit/8] ^= 1 << (bit % 8)
				if _, ok := Key(b); ok {
					t.Errorf("size %d, key %d: a changed bit %d is not noticed", size, key, bit)
				}
				b[bit/8] ^= 1 << (bit % 8)
			}
			if _, ok := Key(b[:len(b)-1]); ok {
				t.Errorf("size %d: a missing byte is not noticed", size)
			}
		}
	}
	if _, ok := Key(make([]byte, 100)); ok {
		t.Error("zeros are taken for a body")
	}
}
