package admin_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-epp/sluice/cmd/sluice/admin"
)

// What a failed call means depends on how it was made.
func TestErrors(t *testing.T) {
	plain, secure, shown := admin.Flags{Address: "h:1"}, admin.Flags{Address: "h:1", TLS: true}, admin.Flags{Address: "h:1", Cert: "c", Key: "k"}
	for _, tc := range []struct {
		flags admin.Flags
		code  codes.Code
		said  string
		want  string
	}{
		{plain, codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp h:1: connect: connection refused"`,
			"no answer from h:1: nothing listens there: is it the right address (--admin), and does Sluice run? The admin port is on loopback " +
				"unless server.adminListen says otherwise (dial tcp h:1: connect: connection refused)"},
		{plain, codes.Unavailable, "error reading server preface: EOF", "it may speak TLS there: --tls"},
		{secure, codes.Unavailable, "write tcp a->b: write: broken pipe", "it may want a certificate"},
		{shown, codes.Unavailable, "read tcp a->b: read: connection reset by peer", "it may not accept the certificate"},
		{secure, codes.Unavailable, "remote error: tls: certificate required", "--cert and --key"},
		{secure, codes.Unavailable, "tls: first record does not look like a TLS handshake", "leave --tls and its like out"},
		{secure, codes.Unavailable, "x509: certificate signed by unknown authority", "--ca FILE names whom to trust"},
		{plain, codes.Unavailable, "no such host", "is it the right address (--admin)"},
		{plain, codes.DeadlineExceeded, "context deadline exceeded", "no answer from h:1 in time"},
		{plain, codes.Unimplemented, "unknown service\n sluice", "it is no admin port (server.adminListen, not server.listen), or its Sluice is older than this one (unknown service sluice)"},
		{plain, codes.NotFound, "no decision carries \x1b[2J", "no decision carries ?[2J"},
	} {
		err := tc.flags.Error(status.Error(tc.code, tc.said))
		if !strings.Contains(err.Error(), tc.want) || strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%q: %q, want %q", tc.said, err, tc.want)
		}
		if status.Code(errors.Unwrap(err)) != tc.code {
			t.Errorf("%q hides its cause", err)
		}
	}
	if err := plain.Error(status.Error(codes.Canceled, "canceled")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	other := errors.New("another fault")
	if err := plain.Error(other); !errors.Is(err, other) {
		t.Error(err)
	}
	if err := plain.Error(nil); err != nil {
		t.Error(err)
	}
}
