package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadDefinitions: files are checked before the node does anything.
func TestReadDefinitions(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.json": `{"queues":[]}`, "a.json": `{}`, "notes.txt": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := readDefinitions(dir)
	if err != nil || len(files) != 2 || filepath.Base(files[0].name) != "a.json" || string(files[1].text) != `{"queues":[]}` {
		t.Errorf("%v, %v", files, err)
	}
	if files, err := readDefinitions(""); err != nil || files != nil {
		t.Errorf("%v, %v", files, err)
	}
	for name, want := range map[string]string{"notes.txt": "failed_to_parse_json", "missing.json": "no such file", "b.json": ""} {
		if _, err := readDefinitions(filepath.Join(dir, name)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The hash of definitions depends on their contents, where each ends, and their order.
func TestHashDefinitions(t *testing.T) {
	seen := map[string]int{}
	for i, texts := range [][]string{{"a", "b"}, {"b", "a"}, {"ab"}, {"ab", ""}, {"a"}, {""}} {
		var files []definitionFile
		for _, text := range texts {
			files = append(files, definitionFile{"name", []byte(text)})
		}
		hash := hashDefinitions(files)
		if other, ok := seen[hash]; ok || len(hash) != 64 {
			t.Errorf("%d, as %d: %s", i, other, hash)
		}
		seen[hash] = i
		if files[0].name = "other"; hashDefinitions(files) != hash {
			t.Errorf("%d: names matter", i)
		}
	}
}
