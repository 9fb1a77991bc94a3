package mgmt

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// TestOpenAPI: the description has every route of the table, and says who may use it.
func TestOpenAPI(t *testing.T) {
	w := newWorld(t)
	out := w.request("maggie", "GET", openAPIPath, "")
	var doc api.OpenAPI
	if err := json.Unmarshal(out.Body.Bytes(), &doc); err != nil || out.Code != 200 {
		t.Fatalf("%d %s", out.Code, out.Body)
	}
	for what, n := range needs {
		method, path, _ := strings.Cut(what, " ")
		o, ok := doc.Paths[path][strings.ToLower(method)]
		if strings.HasPrefix(path, "/api/connections/") || path == "/api/channels/{name}" {
			n.tag = management // what is asked of others there depends on whose connection it is
		}
		if !ok || o.Tag != tagNames[n.tag] || len(o.Parameters) != strings.Count(path, "{") || (n.tag == anybody) != (o.Security == nil) {
			t.Errorf("%s is described as %+v, %v", what, o, ok)
		}
	}
}

// TestRoutesPage: the page for people has every route, too, and holds no script.
func TestRoutesPage(t *testing.T) {
	w := newWorld(t)
	out := w.request("maggie", "GET", "/api/index.html", "")
	if kind := out.Header().Get("Content-Type"); out.Code != 200 || kind != "text/html; charset=utf-8" || strings.Contains(out.Body.String(), "<script") {
		t.Fatalf("%d %s %s", out.Code, kind, out.Body)
	}
	for what := range needs {
		method, path, _ := strings.Cut(what, " ")
		if row := "<code>" + path + "</code></td><td>" + strings.ToLower(method) + "</td>"; !strings.Contains(out.Body.String(), row) {
			t.Errorf("%s is not in it", what)
		}
	}
}
