package mgmt

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

func (w *world) Certificates() []api.Certificate { return w.certificates }

// within asks how the check goes for a time.
func (w *world) within(time string) (status int, body string) {
	w.t.Helper()
	a := w.request("maggie", "GET", "/api/health/checks/certificate-expiration/"+time, "")
	return a.Code, a.Body.String()
}

// What ends within the time that is asked for is named, what ends later is not,
// and what makes no sense is refused.
func TestCertificateExpiration(t *testing.T) {
	w := newWorld(t)
	w.certificates = []api.Certificate{
		{Protocol: "clustering", File: "node.pem", Ends: time.Now().Add(10 * day), AuthoritiesFile: "ca.pem", AuthoritiesEnd: time.Now().Add(3000 * day)},
		{Protocol: "amqp/ssl", File: "cert.pem", Ends: time.Now().Add(100 * day), AuthoritiesFile: "roots.pem", AuthoritiesEnd: time.Now().Add(20 * day)},
		{Protocol: "https", File: "web.pem", Ends: time.Now().Add(-day)},
	}
	for path, want := range map[string]struct {
		status int
		files  string
	}{
		"0/days": {http.StatusServiceUnavailable, "web.pem"}, "9/days": {http.StatusServiceUnavailable, "web.pem"}, "11/DAYS": {http.StatusServiceUnavailable, "node.pem web.pem"},
		"2/weeks": {http.StatusServiceUnavailable, "node.pem web.pem"}, "1/month": {http.StatusServiceUnavailable, "node.pem cert.pem web.pem"},
		"999999999/years": {http.StatusServiceUnavailable, "node.pem cert.pem web.pem"}, "99999999/days": {http.StatusServiceUnavailable, "node.pem cert.pem web.pem"},
		"x/days": {http.StatusBadRequest, "Invalid expiration value."}, "-1/days": {http.StatusBadRequest, "Invalid expiration value."},
		"1/hours": {http.StatusBadRequest, "Time unit not recognised. Use: days, weeks, months, years."},
	} {
		status, body := w.within(path)
		if status != want.status {
			t.Errorf("%s: %d %s", path, status, body)
		}
		for _, f := range []string{"node.pem", "cert.pem", "web.pem"} {
			if status == http.StatusServiceUnavailable && strings.Contains(body, f) != strings.Contains(want.files, f) {
				t.Errorf("%s: %s, want %s", path, body, want.files)
			}
		}
		if status == http.StatusBadRequest && !strings.Contains(body, want.files) {
			t.Errorf("%s: %s", path, body)
		}
	}
	if _, body := w.within("1/month"); !strings.Contains(body, `"certfile_expires_on":[],"cacertfile":"roots.pem","cacertfile_expires_on":["`) {
		t.Errorf("the root that ends is not named: %s", body)
	}
	w.certificates = w.certificates[:1]
	if status, body := w.within("9/days"); status != http.StatusOK || !strings.Contains(body, `"ok"`) {
		t.Errorf("%d %s", status, body)
	}
}
