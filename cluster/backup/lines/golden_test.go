package lines

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden export anew")

const golden = "testdata/export.ndjson"

// Files that were exported are read for years: their format does not change.
func TestGoldenExport(t *testing.T) {
	have := written(t)
	if *rewrite {
		must(t, os.WriteFile(golden, have, 0o644))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if !bytes.Equal(have, want) {
		t.Errorf("%s\nnot\n%s", have, want)
	}
}
