package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// The program says its version as the others do.
func TestVersion(t *testing.T) {
	for _, word := range []string{"version", "-version", "--version"} {
		var out bytes.Buffer
		if err := dispatch(t.Context(), []string{word}, &out); err != nil || out.String() != api.ProductVersion+"\n" {
			t.Errorf("%s: %q, %v", word, out.String(), err)
		}
	}
	var out bytes.Buffer
	if err := dispatch(t.Context(), []string{"versions"}, &out); !errors.Is(err, errUsage) || out.Len() > 0 {
		t.Errorf("another word: %q, %v", out.String(), err)
	}
}
