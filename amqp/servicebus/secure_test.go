package servicebus

import (
	"crypto/tls"
	"testing"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp/amqptest"
)

// Over TLS a client that has a certificate may log in by it, and has no more rights than others without a token (TR-1, TR-3).
func TestExternalLogin(t *testing.T) {
	s := mustServe(t)
	addr, authority := amqptest.ServeTLS(t, s.Server)
	dial := func(certificates ...tls.Certificate) (*client.Conn, error) {
		return client.Dial(t.Context(), "amqps://"+addr, &client.ConnOptions{
			HostName: "Host", SASLType: client.SASLTypeExternal(""), TLSConfig: &tls.Config{RootCAs: authority.Roots(), ServerName: "127.0.0.1", Certificates: certificates},
		})
	}
	if c, err := dial(); err == nil {
		c.Close()
		t.Error("logged in without a certificate")
	}
	c, err := dial(authority.Issue("anyone"))
	must(t, err)
	defer c.Close()
	_, err = mustSession(t, c).NewSender(t.Context(), "q", nil)
	wantRefused(t, err, "amqp:unauthorized-access", "")
	a := mustAsk(t, c, "$cbs")
	if status, why := a.put("amqp://host/", sign("amqp://host/", root, rootKey)); status != 202 {
		t.Fatal(status, why)
	}
	_, err = mustSession(t, c).NewSender(t.Context(), "q", nil)
	must(t, err)
}
