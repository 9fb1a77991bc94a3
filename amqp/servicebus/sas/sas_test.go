package sas

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"
)

var (
	now  = time.Unix(1_800_000_000, 0)
	rule = &Rule{"RootManageSharedAccessKey", Manage, "SAS_KEY_VALUE", "second+/="}
)

func TestOwnTokens(t *testing.T) {
	for _, key := range []string{rule.Primary, rule.Secondary} {
		token, err := Parse(Sign("sb://Host:5672/A/b", rule.Name, key, now.Add(time.Minute)))
		if err != nil {
			t.Fatal(err)
		}
		if err := token.Verify(rule, now, 0); err != nil {
			t.Error(key, err)
		}
		if token.RuleName != rule.Name || token.Resource != "sb://Host:5672/A/b" || !token.Expires.Equal(now.Add(time.Minute)) || Host(token.Resource) != "host" {
			t.Errorf("%+v", token)
		}
		for name, err := range map[string]error{
			"no rule":              token.Verify(nil, now, 0),
			"another key":          token.Verify(&Rule{Primary: "x"}, now, 0),
			"without keys":         token.Verify(&Rule{}, now, 0),
			"late with no rule":    token.Verify(nil, now.Add(time.Minute), 0),
			"late and another key": token.Verify(&Rule{Primary: "x"}, now.Add(time.Minute), 0),
		} {
			if !errors.Is(err, ErrInvalid) {
				t.Error(name, err)
			}
		}
		if err := token.Verify(rule, now.Add(time.Minute), 0); !errors.Is(err, ErrExpired) {
			t.Error("late", err)
		}
		if err := token.Verify(rule, now.Add(time.Minute), time.Second); err != nil {
			t.Error("skew", err)
		}
	}
}

// The resource is signed as it stands in the token: Go escapes with small letters,
// JavaScript with capitals, and the order of fields is anybody's.
func TestTokensOfOthers(t *testing.T) {
	for _, sr := range []string{"amqp%3a%2f%2f127.0.0.1%3a5672%2fq", "amqp%3A%2F%2F127.0.0.1%3A5672%2Fq", "amqp://127.0.0.1:5672/q"} {
		sig := strings.NewReplacer("+", "%2B", "/", "%2F", "=", "%3D").Replace(base64Of(sum(rule.Primary, sr+"\n1800000060")))
		token, err := Parse("SharedAccessSignature se=1800000060&skn=RootManageSharedAccessKey&sig=" + sig + "&sr=" + sr)
		if err != nil {
			t.Fatal(err)
		}
		if err := token.Verify(rule, now, 0); err != nil {
			t.Error(sr, err)
		}
		if !token.Covers("sb://other/Q/$management") {
			t.Error(token.Resource)
		}
		// Some leave the signature's + and / as they are.
		if token, err = Parse("SharedAccessSignature sr=" + sr + "&sig=" + base64Of(sum(rule.Primary, sr+"\n1800000060")) + "&se=1800000060&skn=x"); err != nil || token.Verify(rule, now, 0) != nil {
			t.Error(err)
		}
	}
}

func TestMalformedTokens(t *testing.T) {
	good := Sign("sb://h/q", "r", "k", now)
	for _, text := range []string{
		"", "Bearer x", good[1:], "SharedAccessSignature ", strings.Replace(good, "se=", "sx=", 1), strings.Replace(good, "skn=", "s=", 1), strings.Replace(good, "sr=", "s=", 1),
		strings.Replace(good, "se=1", "se=-1", 1), strings.Replace(good, "se=", "se=9999999999999", 1), good + "&se=1", strings.Replace(good, "sig=", "sig=%25", 1), strings.Replace(good, "sr=sb", "sr=%zz", 1),
		good + strings.Repeat("x", longest),
	} {
		if token, err := Parse(text); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %+v, %v", text, token, err)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		resource, audience string
		want               bool
	}{
		{"sb://h/", "amqp://h/q", true},
		{"sb://h", "https://other:1/q", true},
		{"http://h/Q", "sb://h/q/", true},
		{"http://h/q", "sb://h/q/$management", true},
		{"http://h/q", "sb://h/qq", false},
		{"http://h/q/x", "sb://h/q", false},
		{"https://h/q?api-version=2021-05", "https://h/q", true},
		{"h/q", "https://h/q", true},
		{"http://h/q", "sb://h/", false},
	} {
		if token := (&Token{Resource: c.resource}); token.Covers(c.audience) != c.want {
			t.Errorf("%s and %s", c.resource, c.audience)
		}
	}
	if Host("sb://[::1]:5672/q") != "[::1]" || Host("[::1]/q") != "[::1]" || Host("H") != "h" {
		t.Error(Host("sb://[::1]:5672/q"), Host("[::1]/q"))
	}
}

func TestRights(t *testing.T) {
	if !Manage.Allows(Send|Listen) || Send.Allows(Listen) || (Send | Listen).Allows(Manage) || !Listen.Allows(Listen) {
		t.Error("rights")
	}
}

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
