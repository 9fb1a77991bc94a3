package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestGeneratedFileIsFresh(t *testing.T) {
	want, err := render(composites)
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../../" + output)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is stale: run go generate ./amqp/v10/wire", output)
	}
}

func TestRefusedTables(t *testing.T) {
	for why, table := range map[string][]composite{
		`c: field f has unknown type "quux"`: {{"c", 1, []field{must("f", "quux")}}},
		"a and b have the same descriptor":   {{"a", 1, nil}, {"b", 1, nil}},
		"c: field f: a composite":            {{"c", 1, []field{must("f", "error")}}},
	} {
		if _, err := render(table); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("err = %v, want %q", err, why)
		}
	}
}
