package deployed

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/internal/await"
)

// emulated is the connection string of the samples of Azure Service Bus' emulator.
const emulated = "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"

// A container in the place of the emulator has the entities of the samples' file, serves an unmodified SDK as the samples use
// it, and keeps messages while it is made anew.
func TestServiceBus(t *testing.T) {
	if !*composed {
		t.Skip("needs -deployed.compose")
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	s := &stack{T: t, ctx: ctx, words: words("quorate-bus", "servicebus", "compose.yaml")}
	program := filepath.Join(t.TempDir(), "azservicebus")
	_, err := s.run("env", "GOWORK=off", "GOFLAGS=-mod=readonly", "go", "build", "-C", filepath.Join("..", "clients", "testdata", "azservicebus"), "-o", program, ".")
	s.must(err)
	t.Cleanup(s.down)
	for _, step := range []string{"emulated", "emulated-again"} {
		_, err := s.compose("up", "-d")
		s.must(err)
		s.must(await.Until(ctx, 200*time.Millisecond, "the entities of the file", func() (bool, error) {
			r, err := http.Get("http://127.0.0.1:5300/health")
			if err != nil {
				return false, nil // it does not listen yet
			}
			defer r.Body.Close()
			return r.StatusCode == http.StatusOK, nil
		}))
		out, err := s.run(program, emulated, "", step)
		s.must(err)
		if !strings.HasSuffix(string(out), "ok\n") {
			t.Fatalf("%s", out)
		}
		_, err = s.compose("down", "-t", "30")
		s.must(err)
	}
}
