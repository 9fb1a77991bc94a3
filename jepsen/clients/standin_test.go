package clients

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/jepsen/cluster"
)

// standInFor has the test binary be a tool of RabbitMQ: it asks this address
// to do what its arguments say.
const standInFor = "QUORATE_STAND_IN"

// standIn is what is run in place of rabbitmqctl and make.
func standIn(address string, args []string) {
	answer, err := http.PostForm(address, url.Values{"arg": args})
	if err == nil {
		defer answer.Body.Close()
		_, err = io.Copy(os.Stdout, answer.Body)
	}
	if err != nil || answer.StatusCode != http.StatusOK {
		fmt.Fprintln(os.Stderr, "stand-in:", args, err)
		os.Exit(1)
	}
}

// mustStandIn returns the properties by which the Java client's tests find the
// tools of RabbitMQ: rabbitmqctl, and a makefile that stops and starts its node.
func mustStandIn(t *testing.T, c *cluster.Cluster, f *forwarded) (properties []string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := operate(r, c.Nodes[0], f, r.PostForm["arg"])
		if err != nil {
			t.Logf("%q: %v", r.PostForm["arg"], err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, out)
	}))
	t.Cleanup(server.Close)
	tool := filepath.Join(t.TempDir(), "tool")
	script := fmt.Sprintf("#!/bin/sh\n%s=%s exec '%s' \"$@\"\n", standInFor, server.URL, os.Args[0])
	if err := os.WriteFile(tool, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return []string{
		"-Drabbitmqctl.bin=" + tool, "-Dmake.bin=" + tool, "-Drabbitmq.dir=.", "-Dtest-broker.A.nodename=n1",
		"-Dtest-broker.A.node_port=5672", "-Dtest-broker.A.config_file=none",
	}
}

// operate does to the first node what a tool was asked for.
func operate(r *http.Request, n *cluster.Node, f *forwarded, args []string) (string, error) {
	ctx := r.Context()
	has := func(word string) bool { return slices.Contains(args, word) }
	switch {
	case has("list_connections"):
		var list []struct {
			Name string `json:"name"`
			Port int    `json:"peer_port"`
		}
		err := n.Call(ctx, http.MethodGet, "/api/connections", nil, &list)
		out := ""
		for _, c := range list {
			if port := f.clientOf(c.Port); port != 0 {
				out += c.Name + "\t" + strconv.Itoa(port) + "\n"
			}
		}
		return out, err
	case has("close_connection"):
		name := args[slices.Index(args, "close_connection")+1]
		return "", n.Call(ctx, http.MethodDelete, "/api/connections/"+url.PathEscape(name), nil, nil)
	case has("stop-rabbit-on-node") && has("start-rabbit-on-node"):
		if err := n.Shutdown(ctx); err != nil {
			return "", err
		}
		if err := n.Restart(); err != nil {
			return "", err
		}
		return "", n.AwaitReady(ctx)
	case has("set_vm_memory_high_watermark"):
		part, err := strconv.ParseFloat(args[slices.Index(args, "set_vm_memory_high_watermark")+1], 64)
		if err != nil {
			return "", err
		}
		return "", n.Call(ctx, http.MethodPut, "/api/quorate/limits/vm_memory_high_watermark", map[string]float64{"relative": part}, nil)
	case has("set-resource-alarm"), has("clear-resource-alarm"):
		return "", nil // the memory alarm has blocked the publishers, or unblocks them
	}
	return "", fmt.Errorf("unknown: %s", strings.Join(args, " "))
}
