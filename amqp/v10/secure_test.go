package v10_test

import (
	"crypto/tls"
	"crypto/x509"
	"reflect"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// Over TLS a client may log in by its certificate, if it has one. What else it says then is ignored.
func TestExternalLogin(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) {
		c.CertificateUser = func(c *x509.Certificate) string { return c.Subject.CommonName }
	})
	addr, authority := amqptest.ServeTLS(t, s.Server)
	for user, code := range map[string]byte{"guest": 0, "nobody": 1, "": 1} {
		with, mechanisms := &tls.Config{RootCAs: authority.Roots()}, []string{"PLAIN"}
		if user != "" {
			with.Certificates, mechanisms = []tls.Certificate{authority.Issue(user)}, []string{"PLAIN", "EXTERNAL"}
		}
		conn, err := tls.Dial("tcp", addr, with)
		must(t, err)
		r := newRaw(t, conn)
		r.header(3, 3)
		if m := expect[*wire.SASLMechanisms](r); !reflect.DeepEqual(m.SASLServerMechanisms, mechanisms) {
			t.Errorf("%q: mechanisms %q", user, m.SASLServerMechanisms)
		}
		r.send(0, &wire.SASLInit{Mechanism: "EXTERNAL", InitialResponse: []byte("another")})
		if o := expect[*wire.SASLOutcome](r); o.Code != code {
			t.Errorf("%q: outcome %d, want %d", user, o.Code, code)
		}
		conn.Close()
	}
}
