"""The models of the compile study: equal in both frameworks and all variants; the registry."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest
import torch
from benchmark.compile import models_dgl, models_pyg, registry, tasks
from benchmark.compile.dgl_adapter import load_dgl
from benchmark.compile.modules import (
    Autocast,
    Edges,
    ModelSizes,
)
from benchmark.compile.registry import (
    DatasetEntry,
    Implementation,
    ModeEntry,
    ModelEntry,
    unsupported,
)
from benchmark.compile.tasks import Unsupported
from tests import compile_workloads
from tests.compile_workloads import (
    CLASSES,
    MODELS,
    NODES,
    RELATIONS,
    WIDTH,
    by_framework,
    needs_dgl,
    random_edges,
)
from torch import Tensor, nn

one_thread_and_own_random_state = compile_workloads.one_thread_and_own_random_state
entries = compile_workloads.entries
planted = compile_workloads.planted
pytestmark = pytest.mark.usefixtures("one_thread_and_own_random_state")


def sizes(**changes: object) -> ModelSizes:
    base = ModelSizes(WIDTH, CLASSES, hidden=16, heads=4, dropout=0.0, num_relations=RELATIONS)
    return replace(base, **changes)


def framework_module(framework: str) -> types.ModuleType:
    return models_dgl if framework == "dgl" else models_pyg


def run(
    framework: str, name: str, variant: str, weights: nn.Module, edges: Edges, x: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Output, gradient of `x`, gradients of the parameters under their PyG names."""
    model = framework_module(framework).build(name, sizes(), variant).to(x.dtype)
    state = weights.state_dict()
    if framework == "dgl":
        state = models_dgl.weights_to_dgl(name, state)
    model.load_state_dict(state)
    x = x.clone().requires_grad_()
    args = framework_module(framework).graph_arguments(name, variant, edges, x.dtype)
    out = model(x, *args)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=x.dtype).view_as(out))
    grads = {key: parameter.grad for key, parameter in model.named_parameters()}
    if framework == "dgl":
        grads = models_dgl.weights_to_pyg(name, grads)
    return out.detach(), x.grad, grads


def largest_difference(one: tuple, other: tuple) -> float:
    """Largest difference of outputs and gradients, over the largest value of each tensor."""
    assert one[2].keys() == other[2].keys()
    pairs = [(one[0], other[0]), (one[1], other[1])]
    pairs += [(one[2][key], other[2][key]) for key in one[2]]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1)) for a, b in pairs)


def trained_weights(name: str, dtype: torch.dtype) -> nn.Module:
    """Weights without zeros or ones left from the initialisation: those hide mistakes."""
    model = framework_module("pyg").build(name, sizes(), "no-fixes").to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


# --- the same mathematics ------------------------------------------------------------------------


@needs_dgl
@pytest.mark.dgl
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("variant", ["fixes", "no-fixes"])
@pytest.mark.parametrize("name", MODELS)
def test_dgl_and_pyg_give_equal_outputs_and_gradients(name, variant, dtype, bound, directed):
    edges, x = random_edges(directed), torch.randn(NODES, WIDTH, dtype=dtype)
    weights = trained_weights(name, dtype)
    pyg = run("pyg", name, variant, weights, edges, x)
    dgl = run("dgl", name, variant, weights, edges, x)
    assert largest_difference(pyg, dgl) < bound
    assert pyg[1].abs().max() > 0.01


@by_framework
@pytest.mark.parametrize("name", MODELS)
def test_variants_give_equal_outputs_and_gradients(framework, name):
    edges, x = random_edges(), torch.randn(NODES, WIDTH, dtype=torch.float64)
    weights = trained_weights(name, torch.float64)
    default, fixes, fullgraph = (
        run(framework, name, variant, weights, edges, x)
        for variant in ("no-fixes", "fixes", "fullgraph")
    )
    assert largest_difference(default, fixes) < 1e-12
    assert largest_difference(default, fullgraph) == 0


def adjacency(edges: Edges) -> Tensor:
    """A[i, j] = 1 for an edge from j to i."""
    matrix = torch.zeros(NODES, NODES, dtype=torch.float64)
    matrix[edges.edge_index[1], edges.edge_index[0]] = 1
    return matrix


def dense_layer(name: str, conv: nn.Module, edges: Edges, x: Tensor) -> Tensor:
    """One layer by its formula, on dense matrices."""
    a = adjacency(edges)
    looped = a.clone().fill_diagonal_(1)
    if name == "GCN":
        scale = looped.sum(dim=1).rsqrt()
        return scale[:, None] * looped * scale @ x @ conv.lin.weight.t() + conv.bias
    if name == "GraphSAGE":
        mean = a @ x / a.sum(dim=1, keepdim=True).clamp(min=1)
        return conv.lin_l(mean) + conv.lin_r(x)
    if name == "GIN":
        return conv.nn((1 + conv.eps) * x + a @ x)
    if name == "RGCN":
        out = x @ conv.root + conv.bias
        for relation in range(RELATIONS):
            chosen = edges.edge_type == relation
            part = adjacency(replace(edges, edge_index=edges.edge_index[:, chosen]))
            out = (
                out + part @ x / part.sum(dim=1, keepdim=True).clamp(min=1) @ conv.weight[relation]
            )
        return out
    h = conv.lin(x).view(NODES, conv.heads, -1)
    source, target = (h * conv.att_src).sum(-1), (h * conv.att_dst).sum(-1)
    score = nn.functional.leaky_relu(target[:, None] + source[None, :], 0.2)
    share = score.masked_fill(looped[..., None] == 0, -torch.inf).softmax(dim=1)
    return torch.einsum("ijh,jhf->ihf", share, h).flatten(1) + conv.bias


@pytest.mark.parametrize("name", MODELS)
def test_a_stack_is_what_its_formula_says(name):
    edges, x = random_edges(), torch.randn(NODES, WIDTH, dtype=torch.float64)
    model = trained_weights(name, torch.float64)
    module = framework_module("pyg")
    out = model(x, *module.graph_arguments(name, "no-fixes", edges))
    for number, conv in enumerate(model.convs):
        x = dense_layer(name, conv, edges, x)
        if number < 2:  # batch normalisation in training mode, then the activation
            norm = model.norms[number]
            x = (x - x.mean(0)) / (x.var(0, correction=0) + norm.eps).sqrt()
            x = norm.weight * x + norm.bias
            x = torch.where(x > 0, x, x.expm1()) if name == "GAT" else x.clamp(min=0)
    torch.testing.assert_close(out, x)


@needs_dgl
@pytest.mark.dgl
def test_on_symmetric_graphs_the_gcn_of_dgl_is_its_own_norm_both():
    edges, x = random_edges(directed=False), torch.randn(NODES, WIDTH)
    module = framework_module("dgl")
    layer = module.GCNLayer(WIDTH, 7, fixed=False)
    library = load_dgl().nn.pytorch.GraphConv(WIDTH, 7, norm="both")
    library.weight, library.bias = layer.conv.weight, layer.bias
    (graph,) = module.graph_arguments("GCN", "no-fixes", edges)
    torch.testing.assert_close(layer(x, graph), library(graph, x))


@needs_dgl
@pytest.mark.dgl
@pytest.mark.parametrize("name", MODELS)
def test_weights_survive_the_way_to_dgl_and_back(name):
    dgl_models = framework_module("dgl")
    before = trained_weights(name, torch.float32)
    there = dgl_models.build(name, sizes(), "fixes")
    back = framework_module("pyg").build(name, sizes(), "fixes")
    dgl_models.copy_weights(name, before, there)
    dgl_models.copy_weights_back(name, there, back)
    assert before.state_dict().keys() == back.state_dict().keys()
    for key, tensor in before.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[key]), key


def test_layers_and_heads_are_as_asked():
    gat = framework_module("pyg").build("GAT", ModelSizes(12, 5, 3, 32, 8), "no-fixes")
    shapes = [(conv.in_channels, conv.out_channels, conv.heads, conv.dropout) for conv in gat.convs]
    assert shapes == [(12, 4, 8, 0.0), (32, 4, 8, 0.0), (32, 5, 1, 0.0)]
    gin = framework_module("pyg").build("GIN", ModelSizes(12, 5, 1, 32), "no-fixes")
    assert [type(part).__name__ for part in gin.convs[0].nn] == [
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
    ]
    assert gin.convs[0].eps.requires_grad
    assert len(gin.norms) == 0
    assert ModelSizes(1, 1).dropout == 0.5
    assert (ModelSizes(1, 1).layers, ModelSizes(1, 1).hidden, ModelSizes(1, 1).heads) == (3, 256, 8)


# --- compiled ------------------------------------------------------------------------------------


def compiled_graphs(workload: tasks.Workload, fullgraph: bool = False) -> tuple[int, int, float]:
    """Graphs, distinct places of graph breaks, and the difference from eager."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad(), workload.dynamo():
        compiled = torch.compile(workload.model.eval(), backend="eager", fullgraph=fullgraph)
        out = compiled(*workload.args)
        error = (out - workload.model(*workload.args)).abs().max()
    found = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    torch._dynamo.reset()
    counters.clear()
    return (*found, float(error))


@pytest.mark.parametrize(
    ("model", "variant", "broken"),
    [
        ("GCN", "no-fixes", True),
        ("GCN", "fixes", False),
        ("GAT", "no-fixes", True),
        ("GAT", "fixes", False),
        ("GIN", "no-fixes", False),
        ("RGCN", "no-fixes", True),
        ("RGCN", "fixes", False),
    ],
)
def test_the_fix_is_what_removes_the_graph_breaks(planted, model, variant, broken):
    graphs, breaks, error = compiled_graphs(planted(model, variant))
    assert (graphs > 1, breaks > 0) == (broken, broken)
    assert error < 1e-5


@pytest.mark.parametrize("model", ["GCN", "GAT"])
def test_fullgraph_needs_no_fix(planted, model):
    workload = planted(model, "fullgraph")
    assert workload.fullgraph
    graphs, breaks, error = compiled_graphs(workload, fullgraph=True)
    assert (graphs, breaks) == (1, 0)
    assert error < 1e-5
    assert torch._dynamo.config.capture_dynamic_output_shape_ops is False


@pytest.mark.parametrize(
    "framework", ["pyg", pytest.param("dgl", marks=(needs_dgl, pytest.mark.dgl))]
)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_what_fullgraph_cannot_do_is_an_error_to_report(planted, framework):
    workload = planted("RGCN" if framework == "pyg" else "GCN", "fullgraph", framework=framework)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        compiled_graphs(workload, fullgraph=True)
    assert torch._dynamo.config.capture_dynamic_output_shape_ops is False


@needs_dgl
@pytest.mark.dgl
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_compiled_dgl_equals_eager(planted):
    _, breaks, error = compiled_graphs(planted("GraphSAGE", framework="dgl"))
    assert breaks > 0  # at every call into DGL's library
    assert error < 1e-5


# --- registry ------------------------------------------------------------------------------------


def test_the_study_is_registered():
    assert registry.model_names() == (*MODELS[:4], "RGCN", "DistMult")
    assert registry.mode_names() == (
        "eager",
        "default",
        "reduce-overhead",
        "max-autotune",
        "max-autotune-no-cudagraphs",
    )
    names = registry.dataset_names()
    assert {"Cora", "CiteSeer", "PubMed", "ogbn-arxiv", "ogbn-products", "ogbn-mag"} <= set(names)
    assert {"ogbl-collab", "ogbl-biokg", "ogbl-citation2"} <= set(names)
    assert all(registry.get_dataset(name).is_stand_in == name.endswith("-like") for name in names)


class ScaledConv(nn.Module):
    """A model that is not of the study: one linear layer on the features."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width_in, width_out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(x)


def test_one_entry_adds_a_model_a_data_set_or_a_mode(entries, planted):
    registry.register_model(
        ModelEntry(
            "Linear",
            frozenset({"node"}),
            {
                "pyg": Implementation(
                    build=lambda sizes, variant: ScaledConv(sizes.num_features, sizes.num_outputs),
                    graph_arguments=lambda variant, edges: (edges.edge_index,),
                )
            },
        )
    )
    registry.register_mode(ModeEntry("traced", "default", {"backend": "aot_eager"}))
    assert "Linear" in registry.model_names()
    assert "planted" in registry.dataset_names()  # by the fixture, in one entry
    assert "traced" in registry.mode_names()
    mode = registry.get_mode("traced")
    assert mode.benchmark_arguments() == {"modes": ("default",), "backend": "aot_eager"}
    workload = planted("Linear")
    assert workload.model(*workload.args).shape == (NODES, CLASSES)
    losses = workload.fit(workload.model, 30)
    assert losses[-1] < losses[0]
    reason = unsupported(framework="dgl", model="Linear", dataset="planted")
    assert reason == "Linear is not written for dgl."
    with pytest.raises(Unsupported, match="not written for dgl"):
        planted("Linear", framework="dgl")


def test_a_name_is_registered_once(entries):
    for register, entry in (
        (registry.register_model, registry.get_model("GCN")),
        (registry.register_dataset, registry.get_dataset("cora")),
        (registry.register_mode, registry.get_mode("eager")),
    ):
        with pytest.raises(ValueError, match="is registered already"):
            register(entry)


def test_unknown_names_are_errors_not_limitations():
    with pytest.raises(ValueError, match="model='GTN' is unknown; give one of GCN"):
        unsupported(framework="pyg", model="GTN", dataset="cora-like")
    with pytest.raises(ValueError, match=r"framework='jraph'.*pyg, dgl"):
        unsupported(framework="jraph", model="GCN", dataset="cora-like")
    with pytest.raises(ValueError, match="variant='fix'"):
        unsupported(framework="pyg", model="GCN", dataset="cora-like", variant="fix")
    with pytest.raises(ValueError, match="mode='fastest'"):
        unsupported(framework="pyg", model="GCN", dataset="cora-like", mode="fastest")
    with pytest.raises(ValueError, match="task='edges'"):
        registry.register_dataset(DatasetEntry("x", "edges", lambda: None))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"model": "RGCN"}, "RGCN does not do the task of cora-like (classes of nodes); GCN, G"),
        ({"dataset": "biokg-like"}, "triples of a knowledge graph); DistMult does."),
        ({"dataset": "collab-like", "sampled": True}, "sampled for node classification only"),
        ({"model": "GAT", "hidden": 20}, "hidden=20 is not a multiple of heads=8"),
        ({"hidden": 20}, None),
        ({"amp": True}, None),
    ],
)
def test_what_cannot_run_has_a_reason(changes, reason):
    case = {"framework": "pyg", "model": "GCN", "dataset": "cora-like"}
    said = unsupported(**{**case, **changes})
    assert said is None if reason is None else reason in said


@needs_dgl
@pytest.mark.dgl
def test_the_one_case_that_autocast_rules_out_really_fails(planted):
    reason = unsupported(framework="dgl", model="GAT", dataset="cora-like", amp=True)
    assert "bfloat16" in reason
    workload = planted("GAT", framework="dgl")
    with pytest.raises(load_dgl().DGLError, match="bfloat16"):
        Autocast(workload.model, "cpu")(*workload.args)
