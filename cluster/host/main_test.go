package host

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets some tests run at a time if the command does not say how many: most of what they do
// is wait.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // before the command's flags are read
		panic(err)
	}
	os.Exit(m.Run())
}
