package typed

// source is what a page takes for granted that is read in a clone.
const source = "cd quorate"

// files are the files of a package, without the user and the folders that it makes.
const files = `
	install -m 0644 -D /src/deploy/systemd/quorate.service /usr/lib/systemd/system/quorate.service
	install -m 0644 -D /src/deploy/quorate.conf /etc/quorate/quorate.conf
`

// packaged is a package, installed.
const packaged = files + `
	install -m 0644 -D /src/deploy/systemd/quorate.sysusers /usr/lib/sysusers.d/quorate.conf
	install -m 0644 -D /src/deploy/systemd/quorate.tmpfiles /usr/lib/tmpfiles.d/quorate.conf
	systemd-sysusers quorate.conf && systemd-tmpfiles --create quorate.conf
`

// cluster is a package on three hosts, whose nodes are a cluster.
const hosts = packaged + `
	quoratectl certs init --dir certs > /dev/null
	quoratectl certs node n1 n2 n3 --dir certs > /dev/null
	for k in 1 2 3; do
		host=/hosts/n$k.example.org
		mkdir -p $host/run $host/etc $host/var/lib $host/var/log
		cp -a /etc/quorate $host/etc && cp -a /var/lib/quorate $host/var/lib && cp -a /var/log/quorate $host/var/log
		install -g quorate -m 0640 certs/ca.pem $host/etc/quorate/ca.pem
		install -g quorate -m 0640 certs/n$k.pem $host/etc/quorate/node.pem
		install -g quorate -m 0640 certs/n$k.key $host/etc/quorate/node.key
		sed -i "s/^node_name = .*/node_name = n$k/; s/^#\(cluster\)/\1/; s/host\([123]\)/n\1/; s/0.0.0.0:25672/10.0.0.$k:25672/" $host/etc/quorate/quorate.conf
		cat >> $host/etc/quorate/quorate.conf <<-END
			listeners.tcp.default = 10.0.0.$k:5672
			management.tcp.listener = 10.0.0.$k:15672
			prometheus.tcp.listener = 10.0.0.$k:15692
			default_user = operator
			default_pass = secret
		END
		ssh n$k.example.org systemctl start --no-block quorate
	done
	export QUORATECTL_USERNAME=operator QUORATECTL_PASSWORD=secret
	for k in 1 2 3; do quoratectl -n 10.0.0.$k:15672 await_startup; done
`

// pages are the pages that are typed.
var pages = map[string]known{
	"README.md": {
		given:     source,
		terminals: map[string]string{"make run": "Ctrl-C"},
		untyped: map[string]string{
			"make test":          "runs all tests, this one among them",
			"// Command hello":   "docs/examples/hello, which is run below it",
			"// Command expiry":  "docs/examples/expiry, which is run below it",
			"// Command timeout": "docs/examples/timeout, which is run below it",
		},
	},
	"docs/start.md": {
		given:     source,
		terminals: map[string]string{"make run": "", "bin/quorate server": ""},
		names:     map[string]string{"4711": `\d+`},
	},
	"docs/install.md": {
		installed: true,
		needs:     [][]string{{"apt", "--version"}, {"go", "tool", "-modfile=../../deploy/packages/go.mod", "nfpm", "--version"}, {"go", "build", "-C", "../../deploy/image", "-o", "/dev/null", "."}},
		given: source + `
			export ARCH=amd64 DIST=/usr/bin VERSION=0.1.0
			go tool -modfile=deploy/packages/go.mod nfpm package --config deploy/packages/nfpm.yaml --packager deb --target .
			CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w' -o bin/dist/linux-amd64/ ./cmd/quorate ./cmd/quoratectl
			go run -C deploy/image . -dist $PWD/bin/dist -out $PWD/bin/release -config $PWD/deploy/image/quorate.conf -version 0.1.0 -arch amd64
			mv /usr/bin/quorate /usr/bin/quoratectl .
			echo 'APT::Install-Recommends "false";' > /etc/apt/apt.conf.d/typed
		`,
		terminals: map[string]string{"docker load": "node serves clients"},
		untyped: map[string]string{
			"make image ": "docker compose needs a daemon; make image-test types this, with one that it starts in namespaces",
		},
	},
	"docs/kubernetes.md": {
		installed: true, given: source, needs: [][]string{{"go", "tool", "-modfile=../../deploy/kubernetes/go.mod", "helm", "version"}},
	},
	"docs/backup.md": {installed: true, given: `
		export QUORATECTL_USERNAME=operator QUORATECTL_PASSWORD=secret QUORATE_DEFAULT_USER=operator QUORATE_DEFAULT_PASS=secret
		echo 10.0.0.2 spare.example.org >> /etc/hosts
		quorate server --data-dir data > quorate.log 2>&1 &
		quorate server --data-dir spare --set listeners.tcp.default=10.0.0.2:5672 --set management.tcp.listener=10.0.0.2:15672 \
			--set prometheus.tcp.listener=none --set cluster.listener=10.0.0.2:25672 > spare.log 2>&1 &
		quoratectl await_startup
		quoratectl -n spare.example.org:15672 await_startup
		quoratectl declare_exchange shop
		quoratectl declare_queue orders --arguments '{"x-max-priority": 10}'
		quoratectl bind shop orders eu
		quoratectl publish eu '{"id":1}' --exchange shop --properties '{"headers": {"attempt": 2, "ok": true}, "priority": 7, "expiration": "3600000"}'
		quoratectl publish orders 'order 2'
		quoratectl publish orders 'order 3'
	`},
	"docs/security.md": {installed: true, given: files, untyped: map[string]string{
		"log.audit.file = ": "a line of the settings that are written above it",
		`{"time":`:          "what the log has",
	}},
	"docs/operations.md": {installed: true, given: hosts + `
		for queue in orders invoices returns; do quoratectl -n 10.0.0.1:15672 declare_queue $queue; done
	`},
}
