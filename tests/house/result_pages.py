"""The pages of docs/results are what their figures say, and say it right."""

import os
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "benches"))
import render  # noqa: E402
import results  # noqa: E402


def figure(**more):
    return {"what": "a message", "against": "stock", "ours": 1.0, "unit": "µs", **more}


class Pages(unittest.TestCase):
    def test_pages_are_what_benches_render_py_writes(self):
        self.assertEqual(render.differing(render.pages(render.load())), [], "run benches/render.py")

    def test_every_file_of_figures_is_on_a_page(self):
        files = render.load()
        rendered = render.pages(files)
        for name, page in files.items():
            self.assertIn(f"## {page['title']}\n", "".join(text for page, text in rendered.items() if page.endswith(".md")), name)

    def test_a_file_is_stored_with_a_figure_a_line_and_loses_nothing(self):
        for name, page in render.load().items():
            with open(os.path.join(render.DIRECTORY, f"{name}.json"), encoding="utf-8") as file:
                self.assertEqual(file.read(), results.written(page), name)

    def test_every_record_says_where_when_and_how(self):
        for name, page in render.load().items():
            for record in page["records"]:
                self.assertTrue(all(record[key] for key in ("machine", "kernel", "date", "command", "source", "figures")), name)
                self.assertTrue(record["source"] == results.MEASURED or record["source"].startswith("transcribed from "), name)


class Verdicts(unittest.TestCase):
    def test_a_ratio_is_held_against_the_limit_of_what_it_is_measured_beside(self):
        limits = [{"against": "stock", "ratio_at_most": 1.05}]
        self.assertEqual(render.verdict(figure(ratio={"median": 1.05}), limits), "met")
        self.assertEqual(render.verdict(figure(ratio={"median": 1.06, "low": 0.9, "high": 1.1}), limits), "missed")
        self.assertEqual(render.verdict(figure(ratio={"low": 0.9, "high": 1.1}), limits), "in part")
        self.assertEqual(render.verdict(figure(against="other", ratio={"median": 9}), limits), "")
        self.assertEqual(render.verdict(figure(), limits), "")

    def test_more_may_be_better(self):
        limits = [{"ratio_at_least": 1.5}]
        self.assertEqual(render.verdict(figure(ratio={"median": 1.5}), limits), "met")
        self.assertEqual(render.verdict(figure(ratio={"low": 1.0, "high": 1.4}), limits), "missed")
        self.assertEqual(render.verdict(figure(ratio={"low": 1.0, "high": 2.0}), limits), "in part")

    def test_a_time_has_a_limit_of_its_own(self):
        limits = [{"what": "suspend", "ours_at_most": 5, "unit": "ms"}]
        self.assertEqual(render.verdict({"what": "suspend, traffic", "ours": 1.0}, limits), "met")
        self.assertEqual(render.verdict({"what": "suspend, traffic", "ours": [4.0, 6.0]}, limits), "in part")
        self.assertEqual(render.verdict({"what": "write", "ours": 9.0}, limits), "")


class Figures(unittest.TestCase):
    def tearDown(self):
        results.figures.clear()

    def test_a_ratio_is_the_median_of_the_pairs(self):
        results.note("a message", "us", [2.0, 3.0, 8.0], [1.0, 2.0, 2.0], "stock", size=8)
        (noted,) = results.figures
        self.assertEqual(noted["ratio"], {"median": 2.0, "low": 1.5, "high": 4.0})
        self.assertEqual((noted["ours"], noted["theirs"], noted["pairs"], noted["unit"]), (3.0, 2.0, 3, "µs"))
        self.assertEqual(noted["samples"], {"ours": [2.0, 3.0, 8.0], "theirs": [1.0, 2.0, 2.0]})

    def test_a_record_takes_what_was_noted(self):
        results.note("a message", "us", [2.0])
        taken = results.record("latency")
        self.assertEqual([noted["what"] for noted in taken["figures"]], ["a message"])
        self.assertEqual(results.figures, [])


class Plots(unittest.TestCase):
    def page(self, figures):
        record = {"machine": {"processor": "A & B"}, "date": "2026-11", "figures": figures}
        return {"title": "messages", "limits": [{"ratio_at_most": 1.0}], "records": [record]}

    def test_a_plot_is_drawn_of_two_ratios_or_a_curve_and_is_sound_xml(self):
        few = [figure(ratio={"median": value}) for value in (0.5, 2.0)]
        sizes = [figure(ratio={"median": 1.2}, size=size) for size in (8, 1024, 1 << 20)]
        for figures, shape in ((few, "circle"), (sizes, "polyline")):
            drawing = render.plot(self.page(figures))
            xml.etree.ElementTree.fromstring(drawing)
            self.assertIn(f"<{shape}", drawing)
        self.assertIsNone(render.plot(self.page(few[:1])))


if __name__ == "__main__":
    unittest.main()
