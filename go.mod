module tierd

go 1.26.0

require (
	github.com/coreos/go-systemd/v22 v22.7.0 // readiness and watchdog notices
	github.com/goccy/go-yaml v1.19.2 // strict YAML with positions for the configuration
	github.com/google/uuid v1.6.0 // identities of pools, backings and volumes
	github.com/hanwen/go-fuse/v2 v2.12.1 // file systems of tests that lose power
	github.com/klauspost/compress v1.20.4 // compressed traces, state of verified loads
	github.com/pojntfx/go-nbd v0.3.2 // protocol constants; baseline server of the benchmarks
	github.com/prometheus/client_golang v1.25.0 // metrics
	github.com/prometheus/client_model v0.6.3 // tests read metrics back
	github.com/prometheus/common v0.72.0 // tests parse the exposition format
	github.com/prometheus/exporter-toolkit v0.20.0 // TLS and authentication of the metrics endpoint
	github.com/spf13/cobra v1.10.2 // command line and man pages of tierctl
	github.com/ulikunitz/xz v0.5.17 // traces compressed with xz
	go.etcd.io/bbolt v1.5.0 // the extent map
	go.uber.org/goleak v1.3.0 // tests look for leaked goroutines
	golang.org/x/sys v0.50.0 // system calls that syscall lacks
	golang.org/x/time v0.16.0 // rate of the cleaner
	gonum.org/v1/plot v0.17.0 // charts as PNG and SVG, without C or fonts of the system
	pgregory.net/rapid v1.3.0 // property tests
)

require (
	codeberg.org/go-fonts/liberation v0.5.0 // indirect
	codeberg.org/go-latex/latex v0.2.0 // indirect
	codeberg.org/go-pdf/fpdf v0.11.1 // indirect
	git.sr.ht/~sbinet/gg v0.7.0 // indirect
	github.com/BurntSushi/toml v1.4.1-0.20240526193622-a339e1f7089c // indirect
	github.com/ajstarks/svgo v0.0.0-20211024235047-1546f124cd8b // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/cpuguy83/go-md2man/v2 v2.0.6 // indirect
	github.com/golang-jwt/jwt/v5 v5.3.1 // indirect
	github.com/golang/freetype v0.0.0-20170609003504-e2365dfdc4a0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jpillora/backoff v1.0.0 // indirect
	github.com/mdlayher/socket v0.6.0 // indirect
	github.com/mdlayher/vsock v1.3.0 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/mwitkow/go-conntrack v0.0.0-20190716064945-2f068394615f // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/russross/blackfriday/v2 v2.1.0 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/exp/typeparams v0.0.0-20231108232855-2478ac86f678 // indirect
	golang.org/x/image v0.30.0 // indirect
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/net v0.59.0 // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	golang.org/x/tools v0.51.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	honnef.co/go/tools v0.8.2 // indirect
)

tool honnef.co/go/tools/cmd/staticcheck
