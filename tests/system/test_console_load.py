"""The page Load data in a browser: over a whole Penstock, and over its parts in this process."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from penstock.core.errors import CorruptData, InvalidRequest, PenstockError
from penstock.core.http_errors import error_body, status_and_code
from penstock.indexing.specs.batch.index_parallel import BatchIngestion, IndexParallelSpec
from penstock.indexing.specs.input_sample import parse_sample_request
from penstock.services.api.coordinator.datasource_pages import DatasourcePageRoutes
from penstock.services.api.coordinator.segment_sums import SegmentSums
from penstock.services.api.coordinator.segment_timeline import SegmentTimelineRoutes
from penstock.services.api.input_samples import SampleRoutes
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.login import LoginRoutes
from penstock.services.api.static_pages import ConsoleRoutes
from penstock.services.api.uploads import UploadRoutes
from penstock.services.sampler_process import SampleAnswer
from penstock.spark.batch.input.input_sample import InputSampler
from penstock.spark.batch.options import SparkBatchOptions
from penstock.storage.uploads import UploadLimits, UploadStore
from penstock.testing.server import LocalPenstock
from tests.kits.browser_kit import started_browser
from tests.kits.console_kit import HOSTILE, Console, violations
from tests.kits.flow_console_kit import ProxiedApp
from tests.kits.s3_server_kit import s3_bucket
from tests.services.overlord_kit import OverlordWorld, served

pytestmark = pytest.mark.system

CSV = "day,shop,cents\n" + "".join(
    f"2025-11-{1 + n % 28:02}T{n % 24:02}:00:00Z,Bern,{n}\n" for n in range(600)
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


# A whole Penstock


def test_a_file_becomes_a_chart_without_a_shell(
    browser: Browser, shared_penstock: LocalPenstock
) -> None:
    console = Console(browser, shared_penstock.api_url)
    console.open("load")
    choose(console.page, "tills.csv", f"{CSV}yesterday,Bern,1\n")
    console.shows("All 601 rows were read, of which 1 cannot be parsed")
    console.shows("tills is new")
    console.page.get_by_role("button", name="load the rows").click()
    console.shows("600 rows of tills can be queried")
    expect(console.page.get_by_role("img", name="rows of tills over time")).to_be_visible()
    console.shows("not parseable")
    # Once more: the page shows before how many rows are replaced.
    console.page.get_by_label("replace the time chunks").check()
    console.shows("tills has 600 rows in 1 segment from 2025-11-01 to 2025-12-01")
    console.page.get_by_role("link", name="open it in SQL").click()
    console.page.get_by_role("button", name="run", exact=True).click()
    expect(console.page.get_by_role("region", name="rows")).to_contain_text("2025-11-01")
    console.close()


def test_a_topic_is_read_by_a_supervisor(browser: Browser, shared_penstock: LocalPenstock) -> None:
    events = [{"time": f"2026-11-21T10:0{n}:00Z", "page": HOSTILE} for n in range(5)]
    shared_penstock.publish("loaded", *(json.dumps(one).encode() for one in events))
    console = Console(browser, shared_penstock.api_url)
    console.open("load")
    console.page.get_by_label("a topic").check()
    console.page.get_by_label("topic", exact=True).fill("loaded")
    console.page.get_by_role("button", name="show the rows").click()
    console.shows(HOSTILE)
    # One message a minute: days, although the sample is within an hour.
    expect(
        console.page.get_by_label("day about 30 chunks, 30 segments of 1,440 rows")
    ).to_be_checked()
    console.page.get_by_role("button", name="start the supervisor").click()
    console.shows("5 rows of loaded can be queried")
    assert console.page.evaluate("document.documentElement.scrollWidth") <= 1280
    console.close()
    # Its task would take a slot of the tests after this one.
    shared_penstock.api.post("/druid/indexer/v1/supervisor/loaded/terminate")


@contextmanager
def files_by_http(folder: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("source", ["folder", "url"])
def test_files_that_the_server_reads_are_loaded(
    browser: Browser, shared_penstock: LocalPenstock, tmp_path: Path, source: str
) -> None:
    name = f"from_{source}"
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / f"{name}.csv").write_text(CSV)
    console = Console(browser, shared_penstock.api_url)
    console.open("load")
    with files_by_http(tmp_path / "sales") as address:
        if source == "folder":
            console.page.get_by_label("a folder of the server").check()
            console.page.get_by_label("folder", exact=True).fill(str(tmp_path / "sales"))
        else:
            console.page.get_by_label("a URL").check()
            console.page.get_by_label("address of the file").fill(f"{address}/{name}.csv")
        console.page.get_by_role("button", name="show the rows").click()
        console.shows("All 600 rows were read")
        console.page.get_by_label("datasource").fill(name)
        console.page.get_by_role("button", name="load the rows").click()
        console.shows(f"600 rows of {name} can be queried")
    console.close()


# Its parts in this process


class Sampler:
    """Reads samples in this process, which is faster."""

    def __init__(self, uploads: Path, folder: Path) -> None:
        self._options = SparkBatchOptions(uploads_folder=uploads)
        self._folder = folder

    def sample(self, request: bytes) -> SampleAnswer:
        try:
            sampler = InputSampler(parse_sample_request(request), self._options, self._folder)
            return SampleAnswer(200, json.dumps(sampler.sample()).encode())
        except PenstockError as failure:
            # As its process does: the client's file is damaged, not one of the server.
            error = InvalidRequest(str(failure)) if isinstance(failure, CorruptData) else failure
            status, _ = status_and_code(error)
            return SampleAnswer(status, json.dumps(error_body(error)).encode())


class Parts:
    """The page over uploads, samples and an overlord."""

    def __init__(self, folder: Path) -> None:
        self.world = OverlordWorld(folder, slots=8).start()
        self.store = UploadStore(
            folder / "uploads", self.world.clock, UploadLimits(file_bytes_max=1 << 21)
        )
        self.live = LiveAnswers()
        sampler = Sampler(folder / "uploads", folder / "scratch")
        sums = SegmentSums(self.world.metadata)
        self.app = self.world.make_app(
            more=[
                *ConsoleRoutes().routes(),
                *LoginRoutes().routes(),
                *self.live.routes(),
                *UploadRoutes(self.store).routes(),
                *SampleRoutes(sampler, self.store).routes(),
                *SegmentTimelineRoutes(self.world.metadata, sums).routes(),
                *DatasourcePageRoutes(self.world.metadata, self.world.clock, sums).routes(),
            ]
        )


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    made = Parts(tmp_path_factory.mktemp("parts"))
    yield made
    made.world.close()


@pytest.fixture(scope="module")
def address(parts: Parts) -> Iterator[str]:
    with served(parts.world, parts.app) as place:
        yield place.url
        parts.live.close()


@pytest.fixture
def console(browser: Browser, address: str) -> Iterator[Console]:
    made = Console(browser, address)
    made.open("load")
    made.shows("up to 2.0 MiB")  # files that are larger are not sent
    yield made
    made.close()


def choose(page: Page, name: str, content: str | bytes) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    page.get_by_label("file to load").set_input_files(file)  # type: ignore[arg-type]


def paste(console: Console, text: str) -> None:
    console.page.get_by_label("text to paste").check()
    console.page.get_by_label("rows", exact=True).fill(text)
    console.page.get_by_role("button", name="show the rows").click()


def submitted(parts: Parts, datasource: str) -> BatchIngestion:
    """Wait for the task that loads into a datasource."""
    path = "/druid/indexer/v1/tasks"
    parts.world.until(lambda: f"index_parallel_{datasource}" in parts.world.api.get(path).text)
    tasks = [one.task for one in parts.world.overlord.task_service.index.all().values()]
    [task] = [one for one in tasks if one.datasource == datasource]
    assert isinstance(task, IndexParallelSpec)
    return task.spec


def test_names_and_values_are_shown_as_text(console: Console, parts: Parts) -> None:
    header = f'time,"{HOSTILE}",__proto__,{"long" * 400}'
    row = f'2025-11-20,{HOSTILE},"<script>alert(2)</script>",{"x" * 1_000_000}'
    choose(console.page, f"{HOSTILE.replace('/', '')}.csv", f"{header}\n{row}\n")
    console.shows("3. Destination")
    rows = console.page.get_by_role("region", name="rows as they will be loaded")
    expect(rows).to_contain_text(HOSTILE)
    expect(rows).to_contain_text("<script>alert(2)</script>")
    expect(console.page.locator("main img, main script")).to_have_count(0)
    assert console.page.evaluate("document.documentElement.scrollWidth") <= 1280
    console.page.get_by_text("Files that you uploaded before").click()
    expect(console.page.locator(".uploads")).to_contain_text(HOSTILE)
    assert [one.name for one in parts.store.all()] == [f"{HOSTILE}.csv"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"PK\x03\x04" + b"\0" * 50, "is a zip archive or an Excel file"),
        (b"\x1f\x8b\x08broken", "check that the file is complete"),
        (b"\x00\xff" * 50, "is neither text nor Parquet"),
        (b"PAR1" + b"\0" * 50, "check that the file is complete"),
        (b"", "the file is empty"),
        (b"a,b\n" * (1 << 19) + b"x", "an upload up to 2.0 MiB"),
    ],
    ids=["zip", "gzip", "binary", "parquet", "empty", "large"],
)
def test_a_file_that_cannot_be_loaded_says_why(console: Console, content: bytes, text: str) -> None:
    choose(console.page, "sales.csv", content)
    expect(console.page.get_by_role("alert")).to_contain_text(text)
    expect(console.page.get_by_text("4. Load")).to_have_count(0)


def test_objects_of_s3_become_rows_and_a_spec(console: Console, parts: Parts) -> None:
    with s3_bucket("shop") as bucket:
        import s3fs

        s3fs.S3FileSystem().pipe_file("shop/sales/one.csv", CSV.encode())
        console.page.get_by_label("S3", exact=True).check()
        prefix = console.page.get_by_label("prefix of the objects")
        prefix.fill(f"{bucket}/nothing/")
        console.page.get_by_role("button", name="show the rows").click()
        expect(console.page.get_by_role("alert")).to_contain_text("it has no files")
        prefix.fill(f"{bucket}/sales/")
        console.page.get_by_role("button", name="show the rows").click()
        console.shows("All 600 rows were read")
        console.page.get_by_role("button", name="load the rows").click()
        console.shows("sales")
        source = submitted(parts, "sales").io_config.input_source
    assert source.model_dump(include={"prefixes"}) == {"prefixes": ("s3://shop/sales/",)}


def test_a_file_is_dropped(console: Console) -> None:
    console.page.evaluate(
        """content => {
            const files = new DataTransfer();
            files.items.add(new File([content], "dropped.tsv"));
            document.querySelector(".drop").dispatchEvent(
                new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true}));
        }""",
        "time\tn\n2025-01-01\t1\n",
    )
    expect(console.page.get_by_label("datasource")).to_have_value("dropped")
    expect(console.page.get_by_role("combobox", name="format", exact=True)).to_have_value("tsv")


def test_an_upload_is_cancelled_and_an_earlier_one_is_used(console: Console) -> None:
    page = console.page
    page.route("**/penstock/v1/uploads?name=*", lambda route: None)  # it takes long
    choose(page, "slow.csv", CSV)
    expect(page.get_by_role("progressbar", name="upload of slow.csv")).to_be_visible()
    with page.expect_event("requestfailed", lambda one: "name=slow.csv" in one.url):
        page.get_by_role("button", name="cancel", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("the upload was cancelled")
    expect(page.get_by_role("progressbar")).to_have_count(0)
    expect(page.get_by_text("2. Rows")).to_have_count(0)
    page.unroute_all(behavior="ignoreErrors")
    choose(page, "slow.csv", CSV)
    console.shows("All 600 rows were read")
    page.reload()
    page.get_by_text("Files that you uploaded before").click()
    page.get_by_role("button", name="use slow.csv").click()
    console.shows("All 600 rows were read")
    expect(page.get_by_label("datasource")).to_have_value("slow")


def test_separator_names_and_format_are_chosen(console: Console) -> None:
    paste(console, "time;n\n2025-01-01;1\n2025-01-02;2\n")
    console.shows("All 2 rows were read")
    rows = console.page.get_by_role("region", name="rows as they will be loaded")

    def has_column(name: str) -> None:
        expect(rows.get_by_role("columnheader", name=name, exact=True)).to_be_visible()

    has_column("n")
    separator = console.page.get_by_label("separator")
    expect(separator).to_have_value(";")
    separator.select_option("|")
    has_column("time;n")
    separator.select_option(";")
    has_column("n")
    names = console.page.get_by_label("the first line has the names")
    names.click()
    console.shows("All 3 rows were read")
    has_column("column_2")
    names.click()
    console.shows("All 2 rows were read")
    has_column("n")
    format_ = console.page.get_by_role("combobox", name="format", exact=True)
    format_.select_option("csv")
    has_column("time;n")
    expect(separator).to_have_count(0)
    format_.select_option("json")
    console.shows("No row can be parsed")


def test_without_header_and_time_a_person_decides(console: Console, parts: Parts) -> None:
    paste(console, "1,Bern\n2,Basel\n")
    console.shows("every row needs one, and no column looks like it")
    expect(console.page.get_by_text("4. Load")).to_have_count(0)
    console.page.get_by_role("combobox", name="time", exact=True).select_option(
        label="one time for all rows"
    )
    console.page.get_by_label("time of all rows").fill("2025-11-20")
    console.page.get_by_label("time of all rows").press("Tab")
    console.shows("2025-11-20T00:00:00.000Z")
    console.page.get_by_text("Columns and their types").click()
    console.page.get_by_label("type of column_2").select_option("long")
    console.shows("field 'column_2'")
    console.page.get_by_label("column_2", exact=True).uncheck()
    expect(console.page.get_by_role("region", name="rows that cannot")).to_have_count(0)
    console.page.get_by_label("datasource").fill("chosen")
    submit = console.page.get_by_role("button", name="load the rows")
    submit.click()
    console.shows("chosen")
    spec = submitted(parts, "chosen")
    assert spec.data_schema.timestamp_spec.missing_value == "2025-11-20"
    assert [one.name for one in spec.data_schema.dimensions] == ["column_1"]
    assert spec.io_config.append_to_existing


def test_times_with_two_readings_say_so_and_a_wrong_format_shows_its_rows(
    console: Console,
) -> None:
    paste(console, "at,n\n01/02/2025,1\n03/04/2025,2\n")
    console.shows("these times are also valid in the format MM/dd/yyyy")
    console.shows("2025-02-01T00:00:00.000Z")
    console.page.get_by_label("format of the time").fill("MM/dd/yyyy")
    console.page.get_by_label("format of the time").press("Tab")
    console.shows("2025-01-02T00:00:00.000Z")
    console.page.get_by_label("format of the time").fill("yyyy-MM-dd")
    console.page.get_by_label("format of the time").press("Tab")
    console.shows("No row can be parsed")
    console.page.get_by_label("format of the time").fill("nonsense")
    console.page.get_by_label("format of the time").press("Tab")
    expect(console.page.get_by_role("alert")).to_contain_text("nor a pattern with a year")


def test_errors_of_the_server_are_shown_beside_the_button(console: Console) -> None:
    paste(console, "time,n\n2025-01-01,1\n")
    console.shows("3. Destination")
    console.page.get_by_label("datasource").fill("a/b")
    console.page.get_by_role("button", name="load the rows").click()
    expect(console.page.get_by_role("alert")).to_contain_text("dataSource")
    console.page.get_by_label("datasource").fill("good")
    console.page.get_by_text("The spec of the task").click()
    spec = console.page.get_by_label("spec", exact=True)
    spec.fill(spec.input_value().replace('"index_parallel"', '"nothing"', 1))
    console.page.get_by_role("button", name="load the rows").click()
    expect(console.page.get_by_role("alert")).to_contain_text("nothing")


def answer_with(page: Page, path: str, answer: object) -> None:
    page.route(path, lambda route: route.fulfill(json=answer))


def test_rows_from_before_are_not_those_of_a_new_supervisor(console: Console) -> None:
    body = '{"time": "2026-01-01T00:00:00Z", "id": 9007199254740993}'
    answers: dict[str, object] = {
        "penstock/v1/broker/stats/topics?*": {"page": [{"topic_name": "old", "partitions": 1}]},
        "penstock/v1/broker/peek?*": {"messages": [{"body": body}]},
        "penstock/v1/datasources?search=*": {"found": 1, "datasources": [{"name": "old"}]},
        "druid/indexer/v1/supervisor": {"id": "old"},
        "druid/v2/sql": [{"time": "2026-01-01T00:00:00.000Z", "rows": 9}],
    }
    for path, answer in answers.items():
        answer_with(console.page, f"**/{path}", answer)
    console.page.get_by_label("a topic").check()
    console.page.get_by_label("topic", exact=True).fill("old")
    console.page.get_by_role("button", name="show the rows").click()
    rows = console.page.get_by_role("region", name="rows as they will be loaded")
    expect(rows).to_contain_text("9007199254740993")
    console.page.get_by_role("button", name="start the supervisor").click()
    console.shows("old has 9 rows from before")
    expect(console.page.get_by_text("can be queried")).to_have_count(0)


def test_an_upload_that_another_tab_deletes_is_an_error_in_its_place(
    browser: Browser, address: str, console: Console
) -> None:
    choose(console.page, "twice.csv", CSV)
    console.shows("3. Destination")
    other = Console(browser, address)
    other.open("load")
    other.page.get_by_text("Files that you uploaded before").click()
    row = other.page.locator(".uploads li", has_text="twice.csv")
    row.get_by_role("button", name="delete").click()
    other.page.get_by_role("dialog").get_by_role("button", name="delete").click()
    expect(row).to_have_count(0)
    other.close()
    console.page.get_by_role("button", name="load the rows").click()
    expect(console.page.get_by_role("alert")).to_contain_text("there is no upload")


def test_two_tabs_upload_at_once(browser: Browser, address: str, console: Console) -> None:
    other = Console(browser, address)
    other.open("load")
    choose(other.page, "other.csv", CSV)
    choose(console.page, "mine.csv", CSV)
    expect(other.page.get_by_label("datasource")).to_have_value("other")
    expect(console.page.get_by_label("datasource")).to_have_value("mine")
    other.close()


def test_rows_are_loaded_below_a_path_of_a_proxy(browser: Browser, tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    below = "/below/a/path"
    with served(parts.world, ProxiedApp(parts.app, below)) as place:
        console = Console(browser, f"{place.url}{below}")
        console.open("load")
        choose(console.page, "proxied.csv", CSV)
        console.shows("All 600 rows were read")
        console.page.get_by_role("button", name="load the rows").click()
        submitted(parts, "proxied")
        paths = {urlsplit(one).path for one in console.requests}
        assert {one for one in paths if not one.startswith(f"{below}/")} == set()
        console.context.close()
        parts.live.close()
    parts.world.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_accessible_and_fits(
    browser: Browser, address: str, parts: Parts, theme: str
) -> None:
    size = {"width": 390, "height": 800}
    tab = Console(browser, address, color_scheme=theme, bypass_csp=True, viewport=size)
    tab.open("load")
    choose(tab.page, "sales.csv", f"{CSV}yesterday,Bern,1\n")
    tab.shows("3. Destination")
    tab.page.get_by_text("Columns and their types").click()
    tab.page.get_by_text("The spec of the task").click()
    tab.page.get_by_text(re.compile("Files that you uploaded")).click()
    assert violations(tab) == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    # Its progress, and the first query.
    name = f"axe_{theme}"
    tab.page.get_by_label("datasource").fill(name)
    tab.shows(f"{name} is new.")
    tab.page.get_by_role("button", name="load the rows").click()
    expect(tab.page.get_by_role("link", name="the task", exact=True)).to_be_visible()
    tab.shows("index_parallel")
    assert violations(tab) == []
    times = [{"time": f"2025-11-0{day}T00:00:00.000Z", "rows": day} for day in (1, 2)]
    answer_with(tab.page, "**/druid/v2/sql", times)
    found = {"found": 1, "datasources": [{"name": name}]}
    answer_with(tab.page, "**/penstock/v1/datasources?search=*", found)
    world = parts.world
    world.until(lambda: any(name in task for task in world.peons))
    (task,) = (task for task in world.peons if name in task)
    world.runs(task)
    world.end(task)
    tab.shows(f"3 rows of {name} can be queried")
    expect(tab.page.get_by_role("img", name=f"rows of {name} over time")).to_be_visible()
    assert violations(tab) == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.close()
