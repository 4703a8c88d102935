package control

import "context"

// none is the request of a method without one.
type none struct{}

// A route is one method of Service: its name on the wire, and how to call it.
// The server and the client's test of completeness share the list.
type route struct {
	name   string
	decode func() any // a new request to decode into
	call   func(ctx context.Context, s Service, request any) (any, error)
}

// routes returns every method of Service.
func routes() []route {
	return []route{
		plain(routePoolStatus, Service.PoolStatus),
		list(routeTiers, Service.Tiers),
		list(routeBackings, Service.Backings),
		withRequest(routeBackingForget, Service.BackingForget),
		withRequest(routeBackingAdd, Service.BackingAdd),
		withRequest(routeBackingDrain, Service.BackingDrain),
		withRequest(routeBackingRemove, Service.BackingRemove),
		withRequest(routeTierRemove, Service.TierRemove),
		list(routeVolumes, Service.Volumes),
		list(routeVolumesLost, Service.VolumesLost),
		withRequest(routeVolumeCreate, Service.VolumeCreate),
		withRequest(routeVolumeGrow, Service.VolumeGrow),
		withRequest(routeVolumeDelete, Service.VolumeDelete),
		withRequest(routeVolumeRename, Service.VolumeRename),
		withRequest(routeVolumeSet, Service.VolumeSet),
		plain(routeRelocationStatus, Service.RelocationStatus),
		withRequest(routeRelocationPlan, Service.RelocationPlan),
		withRequest(routeRelocationRun, Service.RelocationRun),
		withRequest(routeRelocationPause, Service.RelocationPause),
		withRequest(routeRelocationResume, Service.RelocationResume),
		withRequest(routeLocate, Service.Locate),
		withRequest(routeHeat, Service.Heat),
		withRequest(routeSkew, Service.Skew),
		list(routeTraces, Service.Traces),
		withRequest(routeTraceStop, Service.TraceStop),
	}
}

const prefix = "/v1/"

// The names of the routes, after prefix.
const (
	routePoolStatus       = "pool-status"
	routeTiers            = "tiers"
	routeBackings         = "backings"
	routeBackingForget    = "backing-forget"
	routeBackingAdd       = "backing-add"
	routeBackingDrain     = "backing-drain"
	routeBackingRemove    = "backing-remove"
	routeTierRemove       = "tier-remove"
	routeVolumes          = "volumes"
	routeVolumesLost      = "volumes-lost"
	routeVolumeCreate     = "volume-create"
	routeVolumeGrow       = "volume-grow"
	routeVolumeDelete     = "volume-delete"
	routeVolumeRename     = "volume-rename"
	routeVolumeSet        = "volume-set"
	routeRelocationStatus = "relocation-status"
	routeRelocationPlan   = "relocation-plan"
	routeRelocationRun    = "relocation-run"
	routeRelocationPause  = "relocation-pause"
	routeRelocationResume = "relocation-resume"
	routeLocate           = "locate"
	routeHeat             = "heat"
	routeSkew             = "skew"
	routeTraces           = "traces"
	routeTraceStop        = "trace-stop"
)

// reading are the requests that change nothing, and so are answered when changes are
// refused.
var reading = map[string]bool{
	routePoolStatus: true, routeTiers: true, routeBackings: true, routeVolumes: true, routeVolumesLost: true, routeRelocationStatus: true,
	routeRelocationPlan: true, routeLocate: true, routeHeat: true, routeSkew: true, routeTraces: true, routeTraceStop: true, routeTraceRecord: true,
}

func plain[Reply any](name string, method func(Service, context.Context) (Reply, error)) route {
	return withRequest(name, func(s Service, ctx context.Context, _ none) (Reply, error) { return method(s, ctx) })
}

// list is plain for a list, which is [] and not null when it is empty.
func list[Element any](name string, method func(Service, context.Context) ([]Element, error)) route {
	return plain(name, func(s Service, ctx context.Context) ([]Element, error) {
		reply, err := method(s, ctx)
		if reply == nil {
			reply = []Element{}
		}
		return reply, err
	})
}

func withRequest[Request, Reply any](name string, method func(Service, context.Context, Request) (Reply, error)) route {
	return route{
		name:   name,
		decode: func() any { return new(Request) },
		call: func(ctx context.Context, s Service, request any) (any, error) {
			return method(s, ctx, *request.(*Request))
		},
	}
}
