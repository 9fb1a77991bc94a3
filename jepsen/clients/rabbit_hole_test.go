package clients

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// rabbitHole is the library by which the Terraform provider and the topology operator use the HTTP
// API.
const rabbitHole = "github.com/michaelklishin/rabbit-hole/v3@v3.5.0"

// notServed are the subjects of its tests that are about plug-ins: what quorate does not have is
// refused, and lists of it are 404.
var notServed = map[string]string{
	"shovel":     "there are no shovels",
	"federation": "there is no federation",
	"PUT /api/parameters/{component}/{vhost}/{name}: when the parameter does not exist": "the example is a federation upstream",
	"GET /api/parameters: when there are runtime parameters":                            "the examples are federation upstreams",
}

// expectedFailures are the others that fail, and why.
var expectedFailures = map[string]string{
	"GET /health/checks/port-listener/5672":             "here that port is forwarded to the node's own",
	"ProtocolPorts: returns a map of enabled protocols": "here that port is forwarded to the node's own",
	"GET /api/global-parameters: returns all global":    "it expects one or two that RabbitMQ sets by itself, beside the name of the cluster",
}

// TestRabbitHoleSuite runs the tests that ship with rabbit-hole from a copy of the module. Each that
// fails must be one that is listed above.
func TestRabbitHoleSuite(t *testing.T) {
	if !*suite {
		t.Skip("-clients.suite is not given")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	node := mustStartNodes(t, ctx, 1).Nodes[0]
	mustForward(t, httpPort, node.HTTP)
	mustForward(t, amqpPort, node.AMQP)
	for _, put := range []struct {
		path string
		body map[string]any
	}{
		{"/api/users/policymaker", map[string]any{"password": "policymaker", "tags": "policymaker"}},
		{"/api/permissions/%2F/policymaker", map[string]any{"configure": ".*", "write": ".*", "read": ".*"}},
		{"/api/vhosts/rabbit%2Fhole", map[string]any{}},
		{"/api/cluster-name", map[string]any{"name": "rabbitmq@localhost"}},
	} {
		if status, body, err := node.Do(ctx, http.MethodPut, put.path, put.body); err != nil || status >= 300 {
			t.Fatalf("%s: %d %s, %v", put.path, status, body, err)
		}
	}
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", rabbitHole)
	download.Dir, download.Env = t.TempDir(), append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	answer, err := download.Output()
	var module struct{ Dir string }
	if jsonErr := json.Unmarshal(answer, &module); err != nil || jsonErr != nil || module.Dir == "" {
		t.Skipf("%s cannot be downloaded: %v\n%s", rabbitHole, err, answer)
	}
	folder, file := filepath.Join(t.TempDir(), "module"), filepath.Join(t.TempDir(), "report.json")
	if err := os.CopyFS(folder, os.DirFS(module.Dir)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count", "1", ".", "-ginkgo.json-report="+file)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT=20s")
	out, runErr := cmd.CombinedOutput()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: %v\n%s", err, runErr, out)
	}
	checkRabbitHole(t, text)
}

// checkRabbitHole counts what a report says.
func checkRabbitHole(t *testing.T, report []byte) {
	t.Helper()
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeText, State, LeafNodeType string
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(report, &suites); err != nil || len(suites) != 1 {
		t.Fatal(err)
	}
	passed, skipped, served, servedPassed := 0, 0, 0, 0
	for _, x := range suites[0].SpecReports {
		if x.LeafNodeType != "It" {
			continue
		}
		name := strings.Join(append(slices.Clone(x.ContainerHierarchyTexts), x.LeafNodeText), ": ")
		reason := ""
		for subject, why := range notServed {
			if strings.Contains(strings.ToLower(name), strings.ToLower(subject)) {
				reason = why
			}
		}
		if x.State == "skipped" || x.State == "pending" {
			skipped++
			continue
		}
		about := reason == ""
		if about {
			served++
		}
		if x.State == "passed" {
			if passed++; about {
				servedPassed++
			}
			continue
		}
		for subject, why := range expectedFailures {
			if strings.Contains(name, subject) {
				reason = why
			}
		}
		if t.Logf("%s: %s: %s", x.State, name, reason); reason == "" {
			t.Errorf("%s: %s", name, x.Failure.Message)
		}
	}
	t.Logf("%d have passed, %d skip themselves; of %d that are about what quorate serves, %d have passed", passed, skipped, served, servedPassed)
	if servedPassed*100 < served*95 {
		t.Errorf("%d of %d have passed, fewer than 95 %%", servedPassed, served)
	}
}
