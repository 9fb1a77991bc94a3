package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// connects uses a queue by connection strings that name it, and that have a signature in the place of a key.
func connects(r *run) {
	q := r.prefix + "connects"
	manages := strings.Fields(os.Getenv("MANAGEMENT"))[0]
	for _, change := range []func(string) string{
		func(s string) string { return s + "EntityPath=" + q },
		func(s string) string { return signed(s, "") },
		func(s string) string { return signed(s, q) + "EntityPath=" + q },
	} {
		client := need(azservicebus.NewClientFromConnectionString(change(os.Args[1]), nil))
		s, from := need(client.NewSender(q, nil)), need(client.NewReceiverForQueue(q, nil))
		r.send(s, "a", "b")
		need(0, from.CompleteMessage(r.ctx, r.receive(from, "a")[0], nil))
		check(len(need(from.PeekMessages(r.ctx, 2, nil))) == 1, "peeked")
		r.takes(from, "b")
		need(0, client.Close(r.ctx))
		at := need(admin.NewClientFromConnectionString(change(manages), nil))
		check(*need(at.GetQueue(r.ctx, q, nil)).MaxDeliveryCount == 10, "the queue")
	}
}

// signed is a connection string with a signature for a path in the place of the key.
func signed(connection, path string) string {
	fields := map[string]string{}
	for field := range strings.SplitSeq(connection, ";") {
		name, value, _ := strings.Cut(field, "=")
		fields[name] = value
	}
	resource := url.QueryEscape(fields["Endpoint"] + "/" + path)
	until := fmt.Sprint(time.Now().Add(time.Hour).Unix())
	sum := hmac.New(sha256.New, []byte(fields["SharedAccessKey"]))
	sum.Write([]byte(resource + "\n" + until))
	signature := url.QueryEscape(base64.StdEncoding.EncodeToString(sum.Sum(nil)))
	return "Endpoint=" + fields["Endpoint"] + ";SharedAccessSignature=SharedAccessSignature sr=" + resource + "&sig=" + signature + "&se=" + until +
		"&skn=" + fields["SharedAccessKeyName"] + ";UseDevelopmentEmulator=true;"
}
