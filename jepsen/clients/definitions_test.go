package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// exported is what a RabbitMQ 4.3.6 exports that was given users, vhosts, permissions, limits,
// policies, exchanges, queues, bindings and parameters of every kind.
const exported = "testdata/rabbitmq-4.3.6.json"

// leftOut is what of that quorate does not have. The import names each.
var leftOut = []string{
	"bindings events → inner", "bindings inner → orders", // RabbitMQ exports no internal exchanges, but their bindings
	"queues stream",
}

// TestDefinitions: a RabbitMQ's definitions go in, and come out equal but for what the report names.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	text, err := os.ReadFile(exported)
	if err != nil {
		t.Fatal(err)
	}
	throughQuorate(t, mustStart(t, ctx), text, leftOut)
}

// TestLoadDefinitions: what a file has is there before a node is ready and clients are served, with
// all its replicas, on each node.
func TestLoadDefinitions(t *testing.T) {
	long.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	file, err := filepath.Abs(exported)
	if err != nil {
		t.Fatal(err)
	}
	c := mustStart(t, ctx, "--set=load_definitions="+file, "--set=definitions.partial=true") // they are ready
	for _, n := range c.Nodes {
		if status, answer, err := n.Do(ctx, http.MethodGet, "/api/bindings/shop/e/events/q/orders", nil); err != nil || status != http.StatusOK || !strings.Contains(string(answer), "order.*") {
			t.Errorf("what is imported last, at %d: %d %s, %v", n.Number, status, answer, err)
		}
		conn, err := amqp.Dial("amqp://app:app-secret@" + n.AMQP + "/shop")
		if err != nil {
			t.Fatal(err)
		}
		ch, err := conn.Channel()
		if err == nil {
			_, err = ch.QueueDeclarePassive("app-none", true, false, false, false, nil)
		}
		var refused *amqp.Error
		if !errors.As(err, &refused) || refused.Code != amqp.NotFound {
			t.Errorf("the user's permissions: %v", err)
		}
		_ = conn.Close()
	}
	if err := await.Until(ctx, 50*time.Millisecond, "all replicas", func() (bool, error) { // the first node may be alone when it loads
		status, answer, err := c.Nodes[0].Do(ctx, http.MethodGet, "/api/queues/shop/orders", nil)
		var q struct{ Members []string }
		if err == nil && status == http.StatusOK {
			err = json.Unmarshal(answer, &q)
		}
		return len(q.Members) == len(c.Nodes), err
	}); err != nil {
		t.Error(err)
	}
}

// TestSkipUnchangedDefinitions: a node loads a file again only if its content has changed, or the hash
// is deleted.
func TestSkipUnchangedDefinitions(t *testing.T) {
	long.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	file := filepath.Join(t.TempDir(), "definitions.json")
	write := func(length string) {
		text := `{"policies":[{"vhost":"/","name":"bound","pattern":"^q","apply-to":"queues","definition":{"max-length":` + length + `}}]}`
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("7")
	n := mustStartNodes(t, ctx, 1, "--set=load_definitions="+file, "--set=definitions.skip_if_unchanged=true").Nodes[0]
	const policy, hash = "/api/policies/%2F/bound", "/api/global-parameters/internal_imported_definitions"
	for _, start := range []struct {
		what, have, then string // the policy after the start, and what it is changed to
		before           func() error
	}{
		{"first", `"max-length":7`, `"max-length":8`, nil},
		{"of the same file", `"max-length":8`, `"max-length":9`, nil},
		{"of another file", `"max-length":5`, `"max-length":6`, func() error { write("5"); return nil }},
		{"without a hash", `"max-length":5`, `"max-length":4`, func() error { return n.Call(ctx, http.MethodDelete, hash, nil, nil) }},
		{"of the other file", `"max-length":4`, `"max-length":3`, nil},
	} {
		if start.what != "first" {
			var err error
			if start.before != nil {
				err = start.before()
			}
			if err := errors.Join(err, n.Shutdown(ctx), n.Restart(), n.AwaitReady(ctx)); err != nil {
				t.Fatalf("%s: %v", start.what, err)
			}
		}
		if status, answer, err := n.Do(ctx, http.MethodGet, policy, nil); err != nil || status != http.StatusOK || !strings.Contains(string(answer), start.have) {
			t.Errorf("the start %s: %d %s, %v; want %s", start.what, status, answer, err, start.have)
		}
		changed := []byte(`{"pattern":"^q","apply-to":"queues","definition":{` + start.then + `}}`)
		if status, answer, err := n.Do(ctx, http.MethodPut, policy, changed); err != nil || status != http.StatusNoContent {
			t.Fatalf("%d %s: %v", status, answer, err)
		}
	}
	if _, answer, err := n.Do(ctx, http.MethodGet, "/api/definitions", nil); err != nil || strings.Contains(string(answer), "internal_imported") {
		t.Errorf("an export: %s, %v", answer, err)
	}
}

// TestDefinitionsOfRabbitMQ: the same with a RabbitMQ that runs, and its own tool.
func TestDefinitionsOfRabbitMQ(t *testing.T) {
	long.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r := mustRabbit(t, ctx)
	text, err := os.ReadFile(exported)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "definitions.json")
	if err := os.WriteFile(file, withoutInner(t, text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, r.control[0], append(r.control[1:], "import_definitions", file)...)
	if cmd.Env = r.env; r.env == nil {
		cmd.Env = os.Environ()
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("this RabbitMQ does not take the definitions: %v\n%s", err, out)
	}
	if text, err = os.ReadFile(r.definitions(t, ctx)); err != nil {
		t.Fatal(err)
	}
	throughQuorate(t, mustStart(t, ctx), text, []string{"queues stream"})
}

// withoutInner leaves out the bindings of an exchange that is not among the definitions.
func withoutInner(t *testing.T, text []byte) []byte {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	all["bindings"] = slices.DeleteFunc(all["bindings"].([]any), func(b any) bool {
		x := b.(map[string]any)
		return x["source"] == "inner" || x["destination"] == "inner"
	})
	rest, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return rest
}

// throughQuorate imports definitions, exports them, and compares. leftOut are those that the import
// names.
func throughQuorate(t *testing.T, c *cluster.Cluster, given []byte, leftOut []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	node := c.Nodes[0]
	status, answer, err := node.Do(ctx, http.MethodPost, "/api/definitions?partial=true", given)
	var report struct {
		Skipped []struct{ Section, VHost, Name, Reason string }
	}
	if err == nil {
		err = json.Unmarshal(answer, &report)
	}
	if err != nil || status != http.StatusOK {
		t.Fatalf("%d %s: %v", status, answer, err)
	}
	var skipped []string
	for _, s := range report.Skipped {
		skipped = append(skipped, s.Section+" "+s.Name)
	}
	if slices.Sort(skipped); !slices.Equal(skipped, leftOut) {
		t.Errorf("left out are %q, want %q: %+v", skipped, leftOut, report.Skipped)
	}
	// Who logs in gets a hash of the cluster's own, soon after.
	const own, guest = `"pbkdf2_sha256"`, "users guest"
	want, got := definitionsIn(t, given), map[string]string{}
	err = await.Until(ctx, 20*time.Millisecond, "the cluster's hash", func() (bool, error) {
		status, answer, err := node.Do(ctx, http.MethodGet, "/api/definitions", nil)
		if err != nil || status != http.StatusOK {
			return false, fmt.Errorf("%d %s: %w", status, answer, err)
		}
		got = definitionsIn(t, answer)
		return want[guest] == "" || strings.Contains(got[guest], own), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want[guest] != "" {
		hash := regexp.MustCompile(`"(hashing_algorithm|password_hash)":"[^"]*"`)
		want[guest], got[guest] = hash.ReplaceAllString(want[guest], ""), hash.ReplaceAllString(got[guest], "")
	}
	for _, name := range skipped {
		delete(want, name)
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s went in as\n%s\nand came out as\n%s", name, want[name], got[name])
		}
	}
	for name := range got {
		if want[name] == "" {
			t.Errorf("%s came out, and did not go in: %s", name, got[name])
		}
	}
	if len(want) < 30 {
		t.Errorf("%d definitions", len(want))
	}
}

// definitionsIn lists definitions by section and name, as they are compared.
func definitionsIn(t *testing.T, text []byte) map[string]string {
	t.Helper()
	var sections map[string]any
	if err := json.Unmarshal(text, &sections); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for section, list := range sections {
		items, ok := list.([]any)
		if !ok {
			continue
		}
		for _, item := range items {
			x := item.(map[string]any)
			name := nameOf(section, x)
			switch {
			case strings.HasPrefix(fmt.Sprint(x["name"]), "amq."): // an exchange of every vhost
				continue
			case section == "vhosts": // limits are among the parameters
				x = map[string]any{"name": x["name"], "metadata": x["metadata"]}
			}
			maps.DeleteFunc(x, func(key string, _ any) bool {
				return key == "internal" || section == "exchanges" && key == "user_who_performed_action"
			})
			line, err := json.Marshal(x)
			if err != nil {
				t.Fatal(err)
			}
			for all[name] != "" { // bindings between the same ends
				name += "+"
			}
			all[name] = string(line)
		}
	}
	return all
}

func nameOf(section string, x map[string]any) string {
	switch section {
	case "bindings":
		return fmt.Sprint(section, " ", x["source"], " → ", x["destination"])
	case "permissions", "topic_permissions":
		return fmt.Sprint(section, " ", x["user"], " ", x["vhost"])
	}
	return fmt.Sprint(section, " ", x["name"])
}
